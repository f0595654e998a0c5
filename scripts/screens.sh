#!/bin/sh
# screens.sh: docs/screens, what a plan and a canary that fails look like, of a lab of two machines that serves.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
python=$root/.venv/bin/python
fleetctl=$root/.venv/bin/fleetctl
out=$root/docs/screens
work=$(mktemp -d)
export LOGNAME=ops

"$python" scripts/small_lab.py inventory.yaml "$work/inventory.yaml" screens 10.255.226 3492
end() {
	cd "$root"
	"$fleetctl" lab down -i "$work/inventory.yaml" || true
	rm -rf "$work"
}
trap end EXIT
"$fleetctl" lab up --fresh -i "$work/inventory.yaml"
settings=$("$fleetctl" lab env -i "$work/inventory.yaml")
eval "$settings"
# Where the lab's inventory is: what is shown of it has no path of this box.
cd "${FLEETCTL_INVENTORY%/*}"
unset FLEETCTL_INVENTORY
mkdir -p "$out"

"$fleetctl" rollout --mtp 4 --yes
shot() { "$python" "$root/scripts/screen.py" "$@"; }
shot "$out/plan.svg" "a plan" "$fleetctl" plan rollout --mtp 5
# The first instance that is changed comes back with an engine that answers garbage: nobody else is touched.
"$fleetctl" lab fault engine 69/0 garbled
shot "$out/canary.svg" "a canary that fails" "$fleetctl" rollout --mtp 5 --yes
shot "$out/status.svg" "what is left, and the command that finishes it" "$fleetctl" status
