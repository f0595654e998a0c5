# job_clear UNIT PROGRESS: forgets a finished transient unit.
systemctl stop "$1" 2>/dev/null || true
systemctl reset-failed "$1" 2>/dev/null || true
rm -f "/run/fleetctl/jobs/$1.sh" "/run/fleetctl/jobs/$1.errors" "$2"
