# remove_container ID FLEET: gone, if its label still says that it is this fleet's.
id=$1 owner=$2
label=$(docker inspect --type container -f '{{index .Config.Labels "fleetctl.fleet"}}' "$id" 2>/dev/null) || exit 0
if [ "$label" != "$owner" ]; then
	echo "container $id is not of fleet $owner any more: left alone" >&2
	exit 1
fi
docker rm -f "$id" >/dev/null
