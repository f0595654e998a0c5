# swap_file PATH MODE OLD_SHA256: like write_file, only if PATH still has the hash OLD_SHA256 (`-`: does not exist).
path=$1 mode=$2 expected=$3
seen=-
if [ -e "$path" ]; then seen=$(sha256sum <"$path" | cut -d' ' -f1); fi
if [ "$seen" != "$expected" ]; then
	echo "changed meanwhile: $path" >&2
	exit 76
fi
folder=$(dirname "$path")
mkdir -p "$folder"
temporary="$folder/.$(basename "$path").fleetctl-new"
trap 'rm -f "$temporary"' EXIT
cat >"$temporary"
chmod "$mode" "$temporary"
# Or, after a power cut, the new name may stand before an empty file: a key of nothing lets everybody in.
sync "$temporary" 2>/dev/null || true
mv -f "$temporary" "$path"
