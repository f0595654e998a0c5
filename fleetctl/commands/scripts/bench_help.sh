# bench_help NAME: what the `vllm bench serve` inside the container NAME can be told; nothing where there is none.
docker exec "$1" sh -c 'vllm bench serve --help=all 2>/dev/null || vllm bench serve --help 2>/dev/null' || true
