# engine_help REFERENCE OUTPUT: the flags that this very image knows, asked once per image and kept.
reference=$1 output=$2
if [ ! -s "$output" ]; then
	mkdir -p "$(dirname "$output")"
	timeout 120 docker run --rm --network none --entrypoint vllm "$reference" serve --help=all >"$output.new"
	mv -f "$output.new" "$output"
fi
cat "$output"
