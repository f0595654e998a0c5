# unit_by_hand FOLDER UNIT: what somebody made of the unit file is saved into FOLDER, with its drop-ins, which go.
folder=$1 unit=$2
mkdir -p "$folder"
if [ -e "/etc/systemd/system/$unit" ]; then cp -p "/etc/systemd/system/$unit" "$folder/$unit"; fi
if [ -d "/etc/systemd/system/$unit.d" ]; then
	cp -a "/etc/systemd/system/$unit.d" "$folder/"
	rm -rf "/etc/systemd/system/$unit.d"
fi
