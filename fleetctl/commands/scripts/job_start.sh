# job_start UNIT DESCRIPTION PROGRESS FOLDER: standard input is a shell script that runs as the transient unit UNIT,
# whether or not anybody watches. A unit of that name that is running is left alone: it is the same work. FOLDER, if it
# is not empty, ends with the unit, also when that is killed.
unit=$1 description=$2 progress=$3 folder=$4
jobs=/run/fleetctl/jobs
state=$(systemctl show -p ActiveState --value "$unit")
if [ "$state" = active ] || [ "$state" = activating ]; then
	sub=$(systemctl show -p SubState --value "$unit")
	if [ "$sub" != exited ]; then
		cat >/dev/null
		exit 0
	fi
fi
mkdir -p "$jobs"
cat >"$jobs/$unit.sh"
systemctl stop "$unit" 2>/dev/null || true
systemctl reset-failed "$unit" 2>/dev/null || true
: >"$progress"
rm -f "$jobs/$unit.result" "$jobs/$unit.errors"
# A job that ends well removes FOLDER itself: when its unit is cleared later, FOLDER may be that of the next one.
# How it ended, and its last words, stay in files until the next reboot: a unit that is gone says nothing (systemd forgets
# one that failed, so that none is left behind), and the journal may get the words later than systemd tells of the end.
# In a file of its own: what systemd writes down of a command with signs of the shell is another one after a daemon-reload.
printf '%s\n' "$folder" >"$jobs/$unit.folder"
cat >"$jobs/$unit.end" <<'END'
echo "$SERVICE_RESULT $EXIT_STATUS" >"$1.result"
folder=$(cat "$1.folder")
if [ -n "$folder" ] && [ "$EXIT_CODE$EXIT_STATUS" != exited0 ]; then rm -rf -- "$folder"; fi
END
systemd-run --quiet --unit="$unit" --description="$description" \
	-p Type=exec -p RemainAfterExit=yes -p CollectMode=inactive-or-failed \
	-p StandardOutput="append:$progress" -p StandardError="append:$jobs/$unit.errors" \
	-p "ExecStopPost=/bin/sh $jobs/$unit.end $jobs/$unit" \
	/bin/sh "$jobs/$unit.sh" 9>&-
