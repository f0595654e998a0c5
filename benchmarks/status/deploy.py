"""pyinfra: the facts that a rollout with nothing to do checks, asked of every machine."""

from pyinfra import host
from pyinfra.facts.server import Command
from pyinfra.operations import server

UNITS = " ".join(host.data.units)
URLS = " ".join(host.data.urls)

server.shell(
    name="units, containers, health, files, NPUs, listeners, disks",
    commands=[
        f"systemctl show -p Id,ActiveState,SubState,UnitFileState {UNITS}",
        f"docker inspect {UNITS}",
        f"for u in {URLS}; do curl -sf -o /dev/null $u; done",
        "sha256sum /etc/systemd/system/*.service /etc/fleetctl/*/api-key",
        "npu-smi info; ss -Hltnp; df -P",
    ],
)
host.get_fact(Command, command="cat /var/lib/fleetctl/*/release.json")
