# unit_restart UNIT: enabled, and running what the unit file says now; when it does not start, why, in its own words.
systemctl reset-failed "$1" 2>/dev/null || true
systemctl enable --quiet "$1"
since=$(date +%s)
said=$(systemctl restart "$1" 2>&1) && rc=0 || rc=$?
# A condition that is not met is no failure to systemd.
if [ "$rc" -ne 0 ] || [ "$(systemctl show -p Result --value "$1")" = exec-condition ]; then
	journalctl --sync 2>/dev/null || true
	why=$(journalctl "_SYSTEMD_UNIT=$1" --since "@$since" -n 3 --no-pager -o cat -q 2>/dev/null | tr '\n' ' ')
	echo "$1 did not start and is down: ${why:-$said}" >&2
	exit 1
fi
