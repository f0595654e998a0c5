#!/bin/sh
# check.sh: the gate: format, lint, types, shell. Everything is looked at, also when something before it failed.
set -u
cd "$(dirname "$0")/.." || exit
failed=''
run() {
	printf '== %s\n' "$*"
	"$@" || failed="$failed $1"
}
shellcheck=shellcheck
if [ -x .venv/bin/shellcheck ]; then shellcheck=.venv/bin/shellcheck; fi

run .venv/bin/ruff check .
run .venv/bin/ruff format --check .
run .venv/bin/mypy
run "$shellcheck" -s sh scripts/*.sh units/watchdog.sh benchmarks/balancer/run.sh fleetctl/lab/host/build.sh fleetctl/lab/host/legacy/workload \
	fleetctl/lab/host/rootfs/usr/local/sbin/lab-cgroups fleetctl/lab/host/rootfs/usr/local/sbin/lab-devices \
	fleetctl/lab/host/rootfs/usr/local/sbin/lab-runc
run "$shellcheck" -s bash .ci/run
# These run behind a preamble that sets -eu, and one behind another.
run "$shellcheck" -s sh -e SC2154,SC2164 fleetctl/commands/scripts/*.sh fleetctl/balancer/shadow.sh
[ -z "$failed" ] || {
	echo "failed:$failed" >&2
	exit 1
}
