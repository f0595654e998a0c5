"""Where a lab keeps what, and what its things are called: everything carries the fleet's name.

Two labs of different fleets with different addresses live side by side; two of the same name do not.
"""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.lab.engines import Engine

RECORD = "lab.json"
LABEL = "fleetctl.lab"
FOLDER_LABEL = "fleetctl.lab.folder"
MACHINE_LABEL = "fleetctl.lab.machine"
HOST = Path(__file__).parent / "host"
ENGINE = Path(__file__).parent / "engine"
VLLM_CPU = Path(__file__).parent / "vllm_cpu_image"


def default_folder(fleet: Fleet) -> Path:
    """`<folder of the inventory>/.lab/<fleet>`; a generated lab inventory stands for the lab it lies in."""
    beside = fleet.path.absolute().parent
    if (beside / RECORD).is_file():
        return beside
    return beside / ".lab" / fleet.name


def cache_folder() -> Path:
    """Where built things stay when labs come and go."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fleetctl" / "lab"


@dataclass(frozen=True)
class Layout:
    """Names and paths of one lab."""

    fleet: str
    folder: Path

    @property
    def label(self) -> str:
        return f"{LABEL}={self.fleet}"

    @property
    def network(self) -> str:
        return f"fleetctl-lab-{self.fleet}"

    def container(self, machine: int) -> str:
        return f"fleetctl-lab-{self.fleet}-{machine}"

    def hostname(self, machine: int) -> str:
        return f"{self.fleet}-{machine}"

    @property
    def record(self) -> Path:
        return self.folder / RECORD

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.yaml"

    @property
    def known_hosts(self) -> Path:
        """The per-fleet file that the remote layer reads beside the lab's inventory."""
        return self.folder / ".fleetctl" / f"{self.fleet}.known_hosts"

    @property
    def key(self) -> Path:
        """The private key that root and ops of every machine of this lab accept."""
        return self.folder / "keys" / "id_ed25519"

    @property
    def api_key(self) -> Path:
        return self.folder / "keys" / "api-key"

    def machine(self, machine: int) -> Path:
        return self.folder / "machines" / str(machine)


@dataclass(frozen=True)
class Record:
    """What `lab up` decided and later commands need; the rest is computed from the inventory."""

    fleet: str
    source: str
    ssh_ports: dict[int, int]
    balancer_port: int
    complete: bool
    engine: Engine = Engine.SIMULATED

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "schema": 1,
            "fleet": self.fleet,
            "inventory": self.source,
            "ssh": {str(machine): port for machine, port in self.ssh_ports.items()},
            "balancer": self.balancer_port,
            "complete": self.complete,
            "engine": self.engine.value,
        }
        new = path.with_suffix(".new")
        new.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        new.replace(path)

    @staticmethod
    def read(path: Path) -> Record | None:
        """None when there is no lab; a record that cannot be read counts as a lab half built."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return Record(
                fleet=str(document["fleet"]),
                source=str(document["inventory"]),
                ssh_ports={int(machine): int(port) for machine, port in document["ssh"].items()},
                balancer_port=int(document["balancer"]),
                complete=bool(document["complete"]),
                engine=Engine(document.get("engine", Engine.SIMULATED.value)),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, AttributeError, TypeError):
            return Record("", "", {}, 0, complete=False)


@dataclass(frozen=True)
class Subnet:
    """The cluster network of a lab: one /24 that holds every address, and a gateway no machine has."""

    network: str
    gateway: str


def subnet(fleet: Fleet) -> Subnet:
    """The /24 of the inventory's addresses. Raises UsageError when a lab cannot have them."""
    addresses = []
    for machine in fleet.inventory.machines:
        try:
            addresses.append(ipaddress.IPv4Address(machine.address))
        except ValueError:
            raise UsageError(
                f"machine {machine.id}: a lab needs IPv4 cluster addresses, this one is {machine.address}"
            ) from None
    networks = sorted({ipaddress.IPv4Network((address, 24), strict=False) for address in addresses})
    if len(networks) > 1:
        raise UsageError(f"a lab needs all cluster addresses in one /24, these are in {', '.join(map(str, networks))}")
    taken = set(addresses)
    hosts = list(networks[0].hosts())
    outside = [address for address in addresses if address not in hosts]
    if outside:
        raise UsageError(f"{outside[0]} is no host address of {networks[0]}")
    gateway = next(host for host in hosts if host not in taken)
    return Subnet(str(networks[0]), str(gateway))
