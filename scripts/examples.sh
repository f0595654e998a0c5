#!/bin/sh
# examples.sh: docs/examples, the reports of a lab of two machines in both languages, measured while it is up.
# What is asked of it, with a fault on the way, is below. It takes some ten minutes and takes the lab down at its end,
# unless FLEETCTL_KEEP_LAB is set.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
fleetctl=$root/.venv/bin/fleetctl
out=$root/docs/examples
work=$(mktemp -d)
export LOGNAME=ops # whom the audit logs, and so the reports, name

step() { printf '\n== %s\n' "$*"; }

"$root/.venv/bin/python" scripts/small_lab.py inventory.yaml "$work/inventory.yaml" report 10.255.247 3494

end() {
	if [ -n "${FLEETCTL_KEEP_LAB:-}" ]; then
		echo "the lab stays up: $work"
		return
	fi
	"$fleetctl" lab down -i "$work/inventory.yaml" || true
	rm -rf "$work"
}
trap end EXIT

step "fleetctl lab up"
"$fleetctl" lab up --fresh -i "$work/inventory.yaml"
settings=$("$fleetctl" lab env -i "$work/inventory.yaml")
eval "$settings"
cd "$work"

step "machines join one by one"
"$fleetctl" add-machine 69 --yes
"$fleetctl" add-machine 67 --yes

step "an engine that does not get well after its restart: the problem that the report tells of"
"$fleetctl" lab fault engine 67/1 unhealthy
"$fleetctl" restart 67/1 --now --yes || true
"$fleetctl" lab fault engine 67/1 clear
"$fleetctl" restart 67/1 --now --yes

step "measured: two lengths of speculation, then the rest"
"$fleetctl" bench sequential --requests 64 --tokens 60 --yes || true
"$fleetctl" rollout --mtp 3 --yes
"$fleetctl" bench sequential --requests 64 --tokens 60 --yes || true
"$fleetctl" rollout --mtp 4 --yes
"$fleetctl" bench distribution --keys 300 --yes || true
"$fleetctl" bench affinity --yes || true
"$fleetctl" bench instance --backend 67/0 --users 1,2,4,8 --tokens 40 --seconds 3 --yes || true
"$fleetctl" bench scaling --users 1,2,4,8 --tokens 40 --seconds 3 --passes 2 --yes || true
"$fleetctl" bench mixed --backend 67/0 --prompt 16K --times 2 --apart 8 --yes || true
"$fleetctl" bench soak --seconds 60 --window 10 --rate 3 --tokens 30 --yes || true
"$fleetctl" bench failover --backend 67/2 --after 90 --yes || true

step "fleetctl report"
mkdir -p "$out"
rm -f "$out"/report.*
"$fleetctl" report --out "$out/report" --lang all --reload
