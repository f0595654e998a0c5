# write_tree FOLDER: standard input is a tar of files that take their places below FOLDER, each by rename.
folder=$1
mkdir -p "$folder"
new="$folder/.fleetctl-new"
rm -rf "$new"
mkdir "$new"
trap 'rm -rf "$new"' EXIT
tar -x -f - -C "$new" --no-same-owner
find "$new" -type f -exec sync {} + 2>/dev/null || true
(cd "$new" && find . -type d -print) | while IFS= read -r part; do mkdir -p "$folder/$part"; done
(cd "$new" && find . -type f -print) | while IFS= read -r part; do mv -f "$new/$part" "$folder/$part"; done
