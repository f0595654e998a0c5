# unit_start UNIT [MARK [PARKED]]: enabled, and started afresh even when it was parked; refused once somebody has left
# MARK. PARKED is the mark of the watchdog, which is no longer true.
if [ -e "${2:-}" ]; then
	echo "stopped on purpose while this command ran: $(cat "$2")" >&2
	exit 1
fi
if [ -n "${3:-}" ]; then rm -f -- "$3"; fi
systemctl reset-failed "$1" 2>/dev/null || true
systemctl enable --quiet "$1"
systemctl start "$1"
# A condition that is not met is no failure to systemd.
if [ "$(systemctl show -p Result --value "$1")" = exec-condition ]; then
	echo "$1 did not start: $(journalctl -u "$1" -n 5 --no-pager -o cat | grep -v '^systemd' | tail -n 3 | tr '\n' ' ')" >&2
	exit 1
fi
