# balancer_apply FOLDER UNIT VERB LIST: standard input is a tar of the files that changed, which take their places in
# FOLDER, and of `applied.sha256`, the hashes of all that are then there, which becomes LIST. UNIT is started, restarted or
# reloaded; when systemd refuses, the old files are back, and LIST is theirs.
folder=$1 unit=$2 verb=$3 list=$4
mkdir -p "$folder" "${list%/*}"
new="$folder/.fleetctl-new"
rm -rf "$new" "$folder.previous"
cp -a "$folder" "$folder.previous"
mkdir "$new"
tar -x -f - -C "$new" --no-same-owner
cp "$new/applied.sha256" "$list.new"
rm "$new/applied.sha256"
find "$new" "$list.new" -type f -exec sync {} + 2>/dev/null || true
# As long as files of two configurations may be there, nothing is said of them.
mv -f "$list" "$list.previous" 2>/dev/null || rm -f "$list.previous"
(cd "$new" && find . -type d -print) | while IFS= read -r part; do mkdir -p "$folder/$part"; done
(cd "$new" && find . -type f -print) | while IFS= read -r part; do mv -f "$new/$part" "$folder/$part"; done
rm -rf "$new"
mv -f "$list.new" "$list"
systemctl daemon-reload
systemctl reset-failed "$unit" 2>/dev/null || true
systemctl enable --quiet "$unit"
if ! systemctl "$verb" "$unit" || [ "$(systemctl show -p Result --value "$unit")" = exec-condition ]; then
	cp -a "$folder.previous/." "$folder/"
	mv -f "$list.previous" "$list" 2>/dev/null || rm -f "$list"
	systemctl is-active --quiet "$unit" || systemctl restart "$unit" || true
	echo "$unit did not $verb, the old configuration is back: $(journalctl -u "$unit" -n 3 --no-pager -o cat | tr '\n' ' ')" >&2
	exit 1
fi
