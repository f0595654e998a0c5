# brought RECORD REFERENCE: a function that notes that fleetctl brought this image here; only such images are ever removed
# again. The last one is the newest.
brought() {
	line="$(docker image inspect -f '{{.Id}}' "$2") $2"
	mkdir -p "$(dirname "$1")"
	touch "$1"
	if [ "$(tail -n 1 "$1")" = "$line" ]; then return 0; fi
	{ grep -vxF "$line" "$1" || true; } >"$1.new"
	printf '%s\n' "$line" >>"$1.new"
	mv -f "$1.new" "$1"
}
