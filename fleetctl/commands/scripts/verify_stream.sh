# verify_stream MARK CONFIG...: each CONFIG is one stream for a curl of its own, the key comes on standard input, as curl
# wants it within quotes. Prints head, body and the times at which pieces arrived. curl's trace shows the key too: it
# goes through a pipe to awk only.
mark=$1
shift
key=$(cat)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
trap '' XFSZ
ulimit -f 8192
number=0
for config in "$@"; do
	{
		printf '%s\nheader = "Authorization: Bearer %s"\n' "$config" "$key"
		printf 'output = %s.%s.body\ndump-header = %s.%s.head\n' "$mark" "$number" "$mark" "$number"
	} | curl -q -s -N --trace-time --trace-ascii - -K - |
		awk '/^[0-9:.]+ <= Recv data/ { print $1 } /^=done/' >"$mark.$number.times" &
	number=$((number + 1))
done
wait
: >"$mark.end"
head -c 65536 "$mark".*
