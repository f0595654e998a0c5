# Functions. unit_up VERB UNIT: enabled, and started or restarted afresh; when it does not start, why, in its own words.
unit_up() {
	systemctl reset-failed "$2" 2>/dev/null || true
	systemctl enable --quiet "$2"
	since=$(date +%s)
	said=$(systemctl "$1" "$2" 2>&1) && rc=0 || rc=$?
	# A condition that is not met is no failure to systemd.
	if [ "$rc" -ne 0 ] || [ "$(systemctl show -p Result --value "$2")" = exec-condition ]; then
		journalctl --sync 2>/dev/null || true
		why=$(journalctl "_SYSTEMD_UNIT=$2" --since "@$since" -n 3 --no-pager -o cat -q 2>/dev/null | tr '\n' ' ')
		echo "$2 did not start and is down: ${why:-$said}" >&2
		exit 1
	fi
}
