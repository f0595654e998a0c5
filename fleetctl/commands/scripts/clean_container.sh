# clean_container FOLDER NAME: saves `docker inspect` into FOLDER, then removes the container.
folder=$1 name=$2
if ! docker inspect --type container "$name" >/dev/null 2>&1; then exit 0; fi
mkdir -p "$folder"
docker inspect --type container "$name" >"$folder/$name.container.json.new"
chmod 600 "$folder/$name.container.json.new"
mv -f "$folder/$name.container.json.new" "$folder/$name.container.json"
docker rm -f "$name" >/dev/null
