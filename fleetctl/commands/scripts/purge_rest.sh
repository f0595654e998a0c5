# purge_rest NAME FOLDER...: what copies of the image NAME left that did not end: throw-away images, the file of a layer;
# and folders.
name=$1
shift
rm -rf -- "$@"
root=$(docker info -f '{{.DockerRootDir}}' 2>/dev/null) || exit 0
docker image ls --filter "reference=fleetctl-partial:$name.*" --format '{{.Repository}}:{{.Tag}}' | xargs -r docker rmi >/dev/null
rm -rf "$root/fleetctl-partial/$name"
rmdir "$root/fleetctl-partial" 2>/dev/null || true
