# write_file PATH MODE: standard input becomes PATH, whole or not at all.
path=$1 mode=$2
folder=$(dirname "$path")
mkdir -p "$folder"
umask 077
temporary="$folder/.$(basename "$path").fleetctl-new"
trap 'rm -f "$temporary"' EXIT
cat >"$temporary"
chmod "$mode" "$temporary"
mv -f "$temporary" "$path"
