#!/bin/sh
# run.sh: the balancer's benchmark with all its peers: HAProxy and wrk from Debian, the two routers from PyPI in a venv of
# their own in the cache.
set -eu
cd "$(dirname "$0")/../.."
wanted=''
command -v wrk >/dev/null || wanted="$wanted wrk"
command -v haproxy >/dev/null || wanted="$wanted haproxy"
if [ -n "$wanted" ]; then
	apt-get update -q >/dev/null
	# shellcheck disable=SC2086 # a list of words
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-remove --no-install-recommends $wanted >/dev/null
fi
ROUTERS=${ROUTERS:-${XDG_CACHE_HOME:-$HOME/.cache}/fleetctl/bench/routers}
export ROUTERS
if [ ! -x "$ROUTERS/bin/sglang-router" ] || [ ! -x "$ROUTERS/bin/vllm-router" ]; then
	python3 -m venv "$ROUTERS"
	"$ROUTERS/bin/pip" install -q --disable-pip-version-check vllm-router sglang-router
fi
PYTHONPATH=. exec .venv/bin/python benchmarks/balancer/run.py "$@"
