# job_manifest MODEL OUTPUT: the digest of every file of the model, as lines `SHA256 SIZE PATH`. Files whose size and
# time are as they were the last time are not read again.
model=$1 output=$2
cd "$model"
stamp=$(stamp_here)
mkdir -p "$(dirname "$output")"
touch "$output.known"
trap 'rm -f "$output.due" "$output.got" "$output.unread"' EXIT
trap 'exit 1' TERM INT HUP
# The known lines of files that are as they were, and the files that have to be read.
awk -v due="$output.due" '
	{ key = $0 }
	FILENAME == ARGV[1] { sub(/^[^ ]+ /, "", key); known[key] = $0; next }
	key in known { print known[key]; next }
	{ print >due }' "$output.known" - >"$output.got" <<EOF
$(files_here)
EOF
touch "$output.due"
total=$(awk '{ s += $1 } END { printf "%.0f", s }' "$output.due")
had=$(wc -l <"$output.got")
hashed "$(nproc)" <"$output.due" | while IFS= read -r line; do
	printf '%s\n' "$line" >>"$output.got"
	tail -n "+$((had + 1))" "$output.got" | awk -v total="$total" '{ s += $2 } END { printf "bytes %.0f %.0f reading\n", s, total }'
done
if [ ! -s "$output.got" ]; then
	echo "the model has no files: $model" >&2
	exit 1
fi
files_here >"$output.due"
if [ "$(stamp_here)" != "$stamp" ]; then
	echo "the model changed while its manifest was made: $model" >&2
	exit 1
fi
awk 'FILENAME == ARGV[1] { sub(/^[^ ]+ /, ""); read[$0] = 1; next }
	!($0 in read) { sub(/^[^ ]+ [^ ]+ /, ""); print }' "$output.got" "$output.due" >"$output.unread"
if [ -s "$output.unread" ]; then
	echo "$(head -n 1 "$output.unread") cannot be read: $model" >&2
	exit 1
fi
LC_ALL=C sort -k 4 "$output.got" >"$output.known"
awk '{ mtime = $3; line = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", line); print $1, $2, line }' "$output.known" >"$output.new"
mv -f "$output.new" "$output"
printf '%s %s\n' "$(sha256sum <"$output" | cut -d' ' -f1)" "$stamp" >"$output.verified.new"
mv -f "$output.verified.new" "$output.verified"
