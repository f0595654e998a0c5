# unit_stop UNIT: stopped. An engine that ignores SIGTERM leaves its unit failed; that is a stopped unit too.
systemctl stop "$1"
systemctl reset-failed "$1" 2>/dev/null || true
