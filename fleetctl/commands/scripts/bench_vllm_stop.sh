# bench_vllm_stop NAME MARK: ends what bench_vllm started with MARK in the container NAME and what that started.
# shellcheck disable=SC2016  # for the shell inside
docker exec "$1" sh -c 'for one in /proc/[0-9]*; do
	if tr "\0" "\n" <"$one/environ" 2>/dev/null | grep -qxF "FLEETCTL_BENCH=$1"; then
		kill "${one#/proc/}" 2>/dev/null || true
	fi
done' sh "$2"
