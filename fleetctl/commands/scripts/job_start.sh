# job_start UNIT DESCRIPTION PROGRESS: standard input is a shell script that runs as the transient unit UNIT, whether or
# not anybody watches. A unit of that name that is running is left alone: it is the same work.
unit=$1 description=$2 progress=$3
state=$(systemctl show -p ActiveState --value "$unit")
if [ "$state" = active ] || [ "$state" = activating ]; then
	sub=$(systemctl show -p SubState --value "$unit")
	if [ "$sub" != exited ]; then
		cat >/dev/null
		exit 0
	fi
fi
mkdir -p /run/fleetctl/jobs
cat >"/run/fleetctl/jobs/$unit.sh"
systemctl stop "$unit" 2>/dev/null || true
systemctl reset-failed "$unit" 2>/dev/null || true
: >"$progress"
systemd-run --quiet --unit="$unit" --description="$description" \
	-p Type=exec -p RemainAfterExit=yes \
	-p StandardOutput="truncate:$progress" -p StandardError=journal \
	/bin/sh "/run/fleetctl/jobs/$unit.sh" 9>&-
