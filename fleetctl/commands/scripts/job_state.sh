# job_state UNIT PROGRESS: state, exit status and the last progress of a transient unit, and its last errors.
systemctl show -p ActiveState,SubState,Result,ExecMainStatus,LoadState "$1"
if [ -e "/run/fleetctl/jobs/$1.result" ]; then echo "Ended=$(cat "/run/fleetctl/jobs/$1.result")"; fi
echo "@@progress"
tail -c 300 "$2" 2>/dev/null | tr '\r' '\n' | grep . | tail -n 1 || true
echo
echo "@@log"
if [ "$(systemctl show -p ActiveState --value "$1")" = failed ]; then
	tail -n 15 "/run/fleetctl/jobs/$1.errors" 2>/dev/null || true
fi
