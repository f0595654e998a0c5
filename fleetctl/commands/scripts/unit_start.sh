# unit_start UNIT [MARK [PARKED]]: enabled, and started afresh even when it was parked; refused once somebody has left
# MARK. PARKED is the mark of the watchdog, which is no longer true.
if [ -e "${2:-}" ]; then
	echo "stopped on purpose while this command ran: $(cat "$2")" >&2
	exit 1
fi
if [ -n "${3:-}" ]; then rm -f -- "$3"; fi
unit_up start "$1"
