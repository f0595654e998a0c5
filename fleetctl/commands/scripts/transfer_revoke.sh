# transfer_revoke USER TAG: the transfer's line is gone from the source.
user=$1 tag=$2
file="$(getent passwd "$user" | cut -d: -f6)/.ssh/authorized_keys"
if [ ! -e "$file" ]; then exit 0; fi
umask 077
temporary="$file.fleetctl-new"
trap 'rm -f "$temporary"' EXIT
awk -v tag="fleetctl-transfer:$tag" '$NF != tag' "$file" >"$temporary"
chown "$user:$(id -gn "$user")" "$temporary"
sync "$temporary" 2>/dev/null || sync
mv -f "$temporary" "$file"
