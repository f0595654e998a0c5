# Both do all their own set-up, as root on a bare Debian 12: `make demo` and `make test`.
.POSIX:
.PHONY: demo test test-faults test-engine chaos screens setup check unit live lab down setup-tests docs examples bench-status bench-rollout bench-balancer bench-distribution bench-client

demo: setup
	sh scripts/demo.sh

test: check
	.venv/bin/python -m pytest tests/unit -n 2 --dist loadfile
	.venv/bin/python -m pytest tests/live -m 'not matrix'
	.venv/bin/python -m pytest tests/lab -m 'not matrix and not engine'

setup:
	sh scripts/setup.sh

setup-tests:
	sh scripts/setup.sh tests

check: setup-tests
	sh scripts/check.sh

unit: setup-tests
	.venv/bin/python -m pytest tests/unit -n 2 --dist loadfile

live: setup-tests
	.venv/bin/python -m pytest tests/live -m 'not matrix'

lab: setup
	.venv/bin/python -m pytest tests/lab -m 'not matrix and not engine'

# One of each class of faults is in `make test`; this is the rest. `make test-faults GO_ON=1` leaves out what has passed.
test-faults: setup-tests
	.venv/bin/python -m pytest tests/live tests/lab -m matrix $(if $(GO_ON),--go-on)

# 100 random kills of rollouts, then 5 of the full fleet: some three quarters of an hour. FLEETCTL_SEED repeats one.
chaos: setup-tests
	.venv/bin/python -m pytest tests/chaos -s

# A real vLLM on the CPU behind two machines; the first time some minutes more, and 25 GB of disk.
test-engine: setup-tests
	.venv/bin/python -m pytest tests/lab -m engine

down:
	.venv/bin/fleetctl lab down -i inventory.yaml

docs: setup
	.venv/bin/python -m fleetctl.fleet.reference >docs/inventory.md

# The reports of a lab, in both languages: some ten minutes.
examples: setup-tests
	sh scripts/examples.sh

# What a plan and a failed canary look like, as pictures: two minutes.
screens: setup-tests
	sh scripts/screens.sh

# Of a lab that serves: after `make demo`.
bench-status:
	eval "$$(.venv/bin/fleetctl lab env -i inventory.yaml)"; .venv/bin/python benchmarks/status/bench.py

# The same: a rollout of all of it under load.
bench-rollout:
	eval "$$(.venv/bin/fleetctl lab env -i inventory.yaml)"; .venv/bin/python benchmarks/rollout/bench.py

bench-balancer: setup
	sh benchmarks/balancer/run.sh

bench-distribution: setup
	.venv/bin/python benchmarks/distribution/bench.py

# Two idle cores: how late our client and others receive what a server stamped.
bench-client: setup
	.venv/bin/python benchmarks/client/bench.py
