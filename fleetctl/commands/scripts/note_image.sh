# note_image RECORD REFERENCE: notes that fleetctl brought this image here; only such images are ever removed again.
record=$1 reference=$2
id=$(docker image inspect -f '{{.Id}}' "$reference")
mkdir -p "$(dirname "$record")"
touch "$record"
if [ "$(tail -n 1 "$record")" = "$id $reference" ]; then exit 0; fi
{ grep -vxF "$id $reference" "$record" || true; } >"$record.new"
printf '%s %s\n' "$id" "$reference" >>"$record.new"
mv -f "$record.new" "$record"
