# remove_watchdog NAME SCRIPT: timer and service NAME stopped, disabled, and their files gone.
name=$1 program=$2
if [ -e "/etc/systemd/system/$name.timer" ]; then systemctl disable --quiet --now "$name.timer"; fi
systemctl stop "$name.service" 2>/dev/null || true
rm -f "/etc/systemd/system/$name.timer" "/etc/systemd/system/$name.service" "$program"
systemctl daemon-reload
systemctl reset-failed "$name.service" "$name.timer" 2>/dev/null || true
