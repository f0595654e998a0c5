# unit_restart UNIT: enabled, and running what the unit file says now.
systemctl reset-failed "$1" 2>/dev/null || true
systemctl enable --quiet "$1"
systemctl restart "$1"
