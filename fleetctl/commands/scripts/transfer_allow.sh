# transfer_allow USER TAG FROM COMMAND HOURS: standard input is a public key that may run COMMAND, and nothing else, from
# the address FROM until it expires. Lines of the same TAG and expired ones are swept.
user=$1 tag=$2 from=$3 command=$4 hours=$5
home=$(getent passwd "$user" | cut -d: -f6)
group=$(id -gn "$user")
mkdir -p "$home/.ssh"
chmod 700 "$home/.ssh"
file=$(readlink -f "$home/.ssh/authorized_keys") # a link stays one
now=$(date +%Y%m%d%H%M)
until=$(date -d "+$hours hours" +%Y%m%d%H%M)
umask 077
temporary="$file.fleetctl-new"
trap 'rm -f "$temporary"' EXIT
if [ -e "$file" ]; then cat "$file"; fi | awk -v tag="fleetctl-transfer:$tag" -v now="$now" '
	/ fleetctl-transfer:/ {
		if ($NF == tag) next
		if (match($0, /expiry-time="[0-9]+"/) && substr($0, RSTART + 13, RLENGTH - 14) + 0 < now + 0) next
	}
	{ print }' >"$temporary"
read -r type key _
command=$(printf '%s' "$command" | sed 's/"/\\"/g')
printf 'restrict,from="%s",expiry-time="%s",command="%s" %s %s fleetctl-transfer:%s\n' \
	"$from" "$until" "$command" "$type" "$key" "$tag" >>"$temporary"
chown "$user:$group" "$home/.ssh" "$temporary"
sync "$temporary" 2>/dev/null || sync
mv -f "$temporary" "$file"
