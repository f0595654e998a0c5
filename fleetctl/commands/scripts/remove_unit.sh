# remove_unit UNIT: stopped, disabled, its file gone. An engine that ignores SIGTERM leaves its unit failed: stopped too.
unit=$1
if [ -e "/etc/systemd/system/$unit" ]; then
	systemctl disable --quiet --now "$unit" || systemctl stop "$unit"
fi
rm -f "/etc/systemd/system/$unit"
rm -rf "/etc/systemd/system/$unit.d"
systemctl daemon-reload
systemctl reset-failed "$unit" 2>/dev/null || true
