"""The `docker run` of an instance, as an argument vector (design, section 3; report, section 5.1)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fleetctl.commands import ascend, paths
from fleetctl.fleet import flags
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance

# The container reads the key from a mounted 0600 file just before exec: `docker inspect` shows -e and --env-file alike.
READ_KEY = 'VLLM_API_KEY=$(cat "$0") && export VLLM_API_KEY && exec "$@"'


@dataclass(frozen=True)
class Topology:
    """CPUs of each NUMA node of a machine, as the kernel writes them (`0-31,64-95`)."""

    nodes: tuple[str, ...] = ()


def cpus(text: str) -> tuple[int, ...]:
    """`0-2,7` -> (0, 1, 2, 7)."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def cpuset(topology: Topology, index: int, instances: int) -> tuple[str, str] | None:
    """CPUs and memory node of instance `index` of `instances`, or None where the topology is unknown.

    Instances are spread over the NUMA nodes in order, and share a node's CPUs evenly
    (all of them where there are fewer than two each). vllm-ascend binds CPUs on
    ARM only (facts/ascend-vllm.md 0.16), so it is done here.
    """
    if not topology.nodes:
        return None
    node = index * len(topology.nodes) // instances
    mates = [i for i in range(instances) if i * len(topology.nodes) // instances == node]
    own = cpus(topology.nodes[node])
    share = len(own) // len(mates)
    if share >= 2:
        start = mates.index(index) * share
        own = own[start : start + share]
    return ",".join(str(cpu) for cpu in own), str(node)


def run_arguments(fleet: Fleet, instance: Instance, topology: Topology) -> list[str]:
    """Everything after `docker` but the spec label: foreground (systemd supervises it), published on one address."""
    inventory = fleet.inventory
    settings = fleet.settings
    host = f"[{instance.host}]" if ":" in instance.host else instance.host
    argv = ["run", "--name", instance.name, "--restart=no", "--network", "bridge"]
    argv += ["--publish", f"{host}:{instance.port}:{instance.port}"]
    argv += ["--shm-size", settings["shm_size"], "--ulimit", "nofile=65536:65536"]
    argv += ["--log-driver", "json-file", "--log-opt", f"max-size={settings['log_max_size']}"]
    argv += ["--log-opt", "max-file=3"]
    pinned = cpuset(topology, instance.index, len(fleet.on(instance.machine)))
    if settings["cpuset"] == "auto" and pinned:
        argv += ["--cpuset-cpus", pinned[0], "--cpuset-mems", pinned[1]]
    argv += ascend.run_arguments(inventory.accelerator, instance)
    argv += [
        "--mount",
        f"type=bind,src={inventory.model.path.parent},dst={paths.MODELS_IN_CONTAINER},readonly",
    ]
    argv += ["--mount", f"type=bind,src={paths.cache(fleet, instance)},dst=/root/.cache"]
    argv += ["--mount", f"type=bind,src={paths.api_key(fleet)},dst={paths.KEY_IN_CONTAINER},readonly"]
    for name, value in fleet.env.items():
        argv += ["-e", f"{name}={value}"]
    argv += ["--label", f"fleetctl.fleet={fleet.name}", "--label", f"fleetctl.instance={instance.id}"]
    argv += ["--label", f"fleetctl.tokens={fleet.tokens or 0}"]
    argv += ["--entrypoint", "/bin/sh", fleet.image, "-c", READ_KEY, str(paths.KEY_IN_CONTAINER)]
    return argv + flags.engine_argv(fleet, instance)


def spec(argv: list[str]) -> str:
    """A short hash of everything that makes two containers the same."""
    return hashlib.sha256("\0".join(argv).encode()).hexdigest()[:12]


def labelled(argv: list[str], spec_hash: str) -> list[str]:
    """The same argument vector with the spec hash as a label of the container."""
    return [*argv[:3], "--label", f"fleetctl.spec={spec_hash}", *argv[3:]]
