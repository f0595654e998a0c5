# tidy_image RECORD ID: an image that fleetctl brought and no release needs; one that a container uses stays, and so do
# names that somebody else gave it.
record=$1 id=$2
if docker image inspect "$id" >/dev/null 2>&1; then
	if [ -n "$(docker ps -aq --filter "ancestor=$id")" ]; then exit 0; fi
	awk -v id="$id" '$1 == id { print $2 }' "$record" | while IFS= read -r name; do
		if [ "$(docker image inspect -f '{{.Id}}' "$name" 2>/dev/null)" = "$id" ]; then docker rmi "$name" >/dev/null; fi
	done
	if docker image inspect "$id" >/dev/null 2>&1; then
		if [ -z "$(docker image inspect -f '{{range .RepoTags}}{{.}}{{end}}' "$id")" ]; then docker rmi "$id" >/dev/null; fi
	fi
fi
{ grep -v "^$id " "$record" || true; } >"$record.new"
mv -f "$record.new" "$record"
