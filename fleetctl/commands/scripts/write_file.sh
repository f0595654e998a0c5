# write_file PATH MODE: standard input becomes PATH, whole or not at all.
path=$1 mode=$2
folder=$(dirname "$path")
mkdir -p "$folder"
umask 077
temporary="$folder/.$(basename "$path").fleetctl-new"
trap 'rm -f "$temporary"' EXIT
cat >"$temporary"
chmod "$mode" "$temporary"
# Or, after a power cut, the new name may stand before an empty file: a key of nothing lets everybody in.
sync "$temporary" 2>/dev/null || true
mv -f "$temporary" "$path"
