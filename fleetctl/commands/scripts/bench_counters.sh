# bench_counters KEY PATTERN ID URL...: of every engine the lines of /metrics that match, behind a line with its id.
key=$1 pattern=$2
shift 2
while [ "$#" -gt 1 ]; do
	printf '@@fleetctl %s\n' "$1"
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$key")" |
		curl -q -s -f -m 5 -K - "$2" | grep -E "$pattern" || true
	shift 2
done
