# clean_unit FOLDER UNIT: saves the definition into FOLDER, then stops, disables and removes the unit.
folder=$1 unit=$2
mkdir -p "$folder"
fragment=$(systemctl show -p FragmentPath --value "$unit")
enabled=$(systemctl is-enabled "$unit" 2>/dev/null || true)
if [ -n "$fragment" ] && [ -f "$fragment" ]; then cp -p "$fragment" "$folder/$unit"; fi
if [ -d "/etc/systemd/system/$unit.d" ]; then cp -a "/etc/systemd/system/$unit.d" "$folder/"; fi
printf '%s\n' "$enabled" >"$folder/$unit.enabled"
systemctl disable --quiet --now "$unit" || systemctl stop "$unit"
systemctl reset-failed "$unit" 2>/dev/null || true
case $fragment in
/etc/systemd/system/*)
	rm -f "$fragment"
	rm -rf "/etc/systemd/system/$unit.d"
	;;
*) systemctl mask --quiet "$unit" ;;
esac
systemctl daemon-reload
