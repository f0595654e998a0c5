# remove_all FLEET JOBS WATCHDOG: whatever units and containers of the fleet are here, by header and label; the watchdog
# goes first, it would bring them back.
owner=$1 jobs=$2 watchdog=$3
if [ -e "/etc/systemd/system/$watchdog.timer" ]; then systemctl disable --quiet --now "$watchdog.timer"; fi
systemctl stop "$watchdog.service" "$jobs.service" 2>/dev/null || true
rm -f "/etc/systemd/system/$watchdog.timer" "/etc/systemd/system/$watchdog.service"
for file in /etc/systemd/system/*.service; do
	if ! grep -qsF "# fleet=$owner instance=" "$file"; then continue; fi
	unit=${file##*/}
	systemctl disable --quiet --now "$unit" || systemctl stop "$unit"
	rm -f "$file"
	rm -rf "$file.d"
	systemctl reset-failed "$unit" 2>/dev/null || true
done
systemctl daemon-reload
ids=$(docker ps -aq --filter "label=fleetctl.fleet=$owner")
# shellcheck disable=SC2086 # ids are words
if [ -n "$ids" ]; then docker rm -f $ids >/dev/null; fi
