# unit_disable UNIT: stopped, and not started by a reboot or by Docker.
systemctl disable --quiet --now "$1"
systemctl reset-failed "$1" 2>/dev/null || true
