# tidy_image RECORD ID: an image that fleetctl brought and no release needs; one that a container uses stays.
record=$1 id=$2
if docker image inspect "$id" >/dev/null 2>&1; then
	names=$(docker image inspect -f '{{range .RepoTags}}{{.}} {{end}}' "$id")
	for name in $names $id; do
		if docker image inspect "$name" >/dev/null 2>&1; then docker rmi "$name" >/dev/null || exit 0; fi
	done
fi
{ grep -v "^$id " "$record" || true; } >"$record.new"
mv -f "$record.new" "$record"
