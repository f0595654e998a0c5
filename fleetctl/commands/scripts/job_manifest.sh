# job_manifest MODEL OUTPUT: the sha256 of every file of the model, made once and kept until sizes or times change.
model=$1 output=$2
cd "$model"
listing() { find . -type f -printf '%P\t%s\t%T@\n' | LC_ALL=C sort; }
stamp=$(listing | sha256sum | cut -d' ' -f1)
if [ -e "$output" ] && [ "$(cat "$output.stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
mkdir -p "$(dirname "$output")"
find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 -r -n 1 -P "$(nproc)" sha256sum >"$output.unsorted"
LC_ALL=C sort -k 2 "$output.unsorted" >"$output.new"
rm -f "$output.unsorted"
if [ "$(listing | sha256sum | cut -d' ' -f1)" != "$stamp" ]; then
	echo "the model changed while its manifest was made: $model" >&2
	exit 1
fi
mv -f "$output.new" "$output"
printf '%s\n' "$stamp" >"$output.stamp"
