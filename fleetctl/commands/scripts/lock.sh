# One step at a time on a machine: a step whose fleetctl was killed goes on to its end, and the next one waits here.
mkdir -p /run/fleetctl
exec 9>>"/run/fleetctl/$fleet.lock"
flock -w 600 9 || {
	echo "a step left by an earlier run has held this machine for 600 s (see: fuser -v /run/fleetctl/$fleet.lock)" >&2
	exit 75
}
