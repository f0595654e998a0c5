# transfer_revoke USER TAG: the transfer's line is gone from this machine; also from the keys of whom fleetctl logged in as
# before the inventory named USER.
user=$1 tag=$2
umask 077
for home in "$(getent passwd "$user" | cut -d: -f6)" /root /home/*; do
	file=$(readlink -f "$home/.ssh/authorized_keys") || continue
	grep -qF "fleetctl-transfer:$tag" "$file" 2>/dev/null || continue
	temporary="$file.fleetctl-new"
	trap 'rm -f "$temporary"' EXIT
	awk -v tag="fleetctl-transfer:$tag" '$NF != tag' "$file" >"$temporary"
	chown --reference="$file" "$temporary"
	sync "$temporary" 2>/dev/null || sync
	mv -f "$temporary" "$file"
done
