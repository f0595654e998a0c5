# canary KEY URL...: standard input has one request body a line; each engine is asked for each completion. The answers
# come back with the seconds they took, the engine's counters of speculation after them.
key=$1
shift
bodies=$(cat)
first=1
for url; do
	if [ "$first" = 0 ]; then echo "@@sibling"; fi
	first=0
	number=0
	printf '%s\n' "$bodies" | while IFS= read -r line; do
		printf '@@fleetctl answer-%d 0\n' "$number"
		number=$((number + 1))
		# The key goes to curl on its standard input: never an argument. The body has no secret.
		printf 'header = "Authorization: Bearer %s"\n' "$(cat "$key")" |
			curl -s -K - -m 60 -H 'Content-Type: application/json' --data-binary "$line" \
				-w '\n%{http_code} %{time_total}\n' "$url/v1/chat/completions" || echo "000 0"
	done
	echo "@@fleetctl counters 0"
	curl -s -m 5 "$url/metrics" | grep '^vllm:spec_decode_num_[a-z_]*total' || true
done
