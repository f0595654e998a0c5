# job_state UNIT PROGRESS: state, exit status and the last progress of a transient unit, and its last errors.
systemctl show -p ActiveState,SubState,Result,ExecMainStatus,LoadState "$1"
ended=$(cat "/run/fleetctl/jobs/$1.result" 2>/dev/null || true)
if [ -n "$ended" ]; then echo "Ended=$ended"; fi
echo "@@progress"
tail -c 300 "$2" 2>/dev/null | tr '\r' '\n' | grep . | tail -n 1 || true
echo
echo "@@log"
case $ended in
'' | success*) ;;
*) tail -n 15 "/run/fleetctl/jobs/$1.errors" 2>/dev/null || true ;;
esac
