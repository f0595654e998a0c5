# unit_restart UNIT: enabled, and running what the unit file says now.
systemctl reset-failed "$1" 2>/dev/null || true
systemctl enable --quiet "$1"
systemctl restart "$1"
# A condition that is not met is no failure to systemd.
if [ "$(systemctl show -p Result --value "$1")" = exec-condition ]; then
	echo "$1 did not start: $(journalctl -u "$1" -n 5 --no-pager -o cat | grep -v '^systemd' | tail -n 3 | tr '\n' ' ')" >&2
	exit 1
fi
