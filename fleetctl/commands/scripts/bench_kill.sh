# bench_kill NAME: the container dies as if its process had been killed; its unit starts it again.
docker kill --signal KILL "$1" >/dev/null
