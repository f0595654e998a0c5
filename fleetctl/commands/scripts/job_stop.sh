# job_stop UNIT: ends a transient unit; what it has done so far stays.
systemctl stop "$1" 2>/dev/null || true
systemctl reset-failed "$1" 2>/dev/null || true
