# job_clear UNIT PROGRESS: forgets a finished transient unit.
systemctl stop "$1" 2>/dev/null || true
systemctl reset-failed "$1" 2>/dev/null || true
for part in sh end folder errors; do rm -f "/run/fleetctl/jobs/$1.$part"; done
rm -f "$2"
