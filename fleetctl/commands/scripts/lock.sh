# One step at a time on a machine: a step whose fleetctl was killed goes on to its end, and the next one waits here.
mkdir -p /run/fleetctl
exec 9>>"/run/fleetctl/$fleet.lock"
flock -w "${patience:-600}" 9 || {
	echo "another step of fleetctl has held this machine for ${patience:-600} s (see: fuser -v /run/fleetctl/$fleet.lock)" >&2
	exit 75
}
