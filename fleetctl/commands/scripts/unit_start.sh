# unit_start UNIT: enabled, and started afresh even when it was parked.
systemctl reset-failed "$1" 2>/dev/null || true
systemctl enable --quiet "$1"
systemctl start "$1"
