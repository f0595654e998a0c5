"""Where fleetctl keeps things on a machine. Everything of a fleet is below a folder of its name."""

from __future__ import annotations

from pathlib import PurePosixPath

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance

SYSTEMD = PurePosixPath("/etc/systemd/system")
KEY_IN_CONTAINER = PurePosixPath("/run/secrets/fleetctl-api-key")
MODELS_IN_CONTAINER = PurePosixPath("/models")


def etc(fleet: Fleet) -> PurePosixPath:
    return PurePosixPath("/etc/fleetctl") / fleet.name


def state(fleet: Fleet) -> PurePosixPath:
    return PurePosixPath("/var/lib/fleetctl") / fleet.name


def api_key(fleet: Fleet) -> PurePosixPath:
    return etc(fleet) / "api-key"


def alone(fleet: Fleet) -> PurePosixPath:
    """On the balancer's machine: may it start (units/alone.sh)?"""
    return etc(fleet) / "alone.sh"


def since(fleet: Fleet) -> PurePosixPath:
    """On the balancer's machine: the release with which it became the balancer."""
    return etc(fleet) / "balancer-since"


def others(fleet: Fleet) -> PurePosixPath:
    """On the balancer's machine: where other machines would answer if they were the balancer."""
    return etc(fleet) / "balancer-others"


def balancer_files(fleet: Fleet) -> tuple[PurePosixPath, ...]:
    """What the balancer's machine has besides its folder."""
    listed = applied(fleet)
    before = listed.with_name(f"{listed.name}.previous")
    return alone(fleet), others(fleet), since(fleet), old_key(fleet), logrotate(fleet), listed, before


def old_key(fleet: Fleet) -> PurePosixPath:
    """On the balancer's machine: the key that is being replaced (units/lua/secret.lua reads it there)."""
    return etc(fleet) / "api-key.old"


def balancer(fleet: Fleet) -> PurePosixPath:
    return etc(fleet) / "balancer"


def applied(fleet: Fleet) -> PurePosixPath:
    """On the balancer's machine: what its files were when they were applied, as `sha256sum -c` reads it."""
    return state(fleet) / "balancer.sha256"


def peers(fleet: Fleet) -> PurePosixPath:
    return balancer(fleet) / "peers"


def logrotate(fleet: Fleet) -> PurePosixPath:
    return PurePosixPath("/etc/logrotate.d") / f"fleetctl-{fleet.name}"


def unit(name: str) -> PurePosixPath:
    return SYSTEMD / f"{name}.service"


def watchdog(fleet: Fleet) -> PurePosixPath:
    return state(fleet) / "watchdog.sh"


def watchdog_unit(fleet: Fleet) -> str:
    """Of its service and its timer. Not `fleetctl-FLEET-...`: those are jobs."""
    return f"fleetctl-watchdog-{fleet.name}"


def watchdog_files(fleet: Fleet) -> tuple[PurePosixPath, PurePosixPath, PurePosixPath]:
    """Script, service and timer."""
    name = watchdog_unit(fleet)
    return watchdog(fleet), SYSTEMD / f"{name}.service", SYSTEMD / f"{name}.timer"


def cache(fleet: Fleet, instance: Instance) -> PurePosixPath:
    """Compile caches, kept across restarts (facts/ascend-vllm.md 1.8)."""
    return caches(fleet) / instance.name


def caches(fleet: Fleet) -> PurePosixPath:
    return PurePosixPath("/var/cache/fleetctl") / fleet.name


def manifest(fleet: Fleet) -> PurePosixPath:
    return state(fleet) / "manifest" / f"{fleet.inventory.model.path.name}.sha256"


def images(fleet: Fleet) -> PurePosixPath:
    """Images that fleetctl brought here, `ID REFERENCE`, oldest first."""
    return state(fleet) / "images"


def model_versions(fleet: Fleet) -> PurePosixPath:
    """Copies of the model by content, beside its path, which is a link to one of them; `partial` is on its way."""
    path = fleet.inventory.model.path
    return path.parent / f".{path.name}.fleetctl"


def release(fleet: Fleet) -> PurePosixPath:
    return state(fleet) / "release.json"


def releases(fleet: Fleet) -> PurePosixPath:
    """Releases that proved good, one file each."""
    return state(fleet) / "releases"


def experiment(fleet: Fleet) -> PurePosixPath:
    """What `bench ab` is about to change, until all is back as it was; its presence is the fact."""
    return state(fleet) / "experiment.json"


def stopped(fleet: Fleet, instance: Instance) -> PurePosixPath:
    """Who stopped the instance on purpose, when and why; its presence is the fact."""
    return state(fleet) / "stopped" / instance.name


def parked(fleet: Fleet, instance: Instance) -> PurePosixPath:
    """Why the watchdog gave the instance up; true as long as its unit is not started."""
    return state(fleet) / "parked" / instance.name


def saved(fleet: Fleet, stamp: str) -> PurePosixPath:
    return state(fleet) / "saved" / stamp


def audit(fleet: Fleet) -> PurePosixPath:
    return state(fleet) / "audit.log"


def fleet_lock(fleet: Fleet) -> PurePosixPath:
    """Who is changing the fleet; in /run, so that a reboot frees it."""
    return PurePosixPath("/run/fleetctl") / f"{fleet.name}.fleet-lock"


def engine_help(fleet: Fleet, image_content: str) -> PurePosixPath:
    return state(fleet) / "help" / f"{image_content[:24]}.txt"


def job(fleet: Fleet, what: str) -> str:
    """The transient unit of a piece of long work, named by what it does so that a second start is the same one."""
    return f"fleetctl-{fleet.name}-{what}"


def job_progress(unit_name: str) -> PurePosixPath:
    return PurePosixPath("/run/fleetctl/jobs") / f"{unit_name}.progress"


def job_script(unit_name: str) -> PurePosixPath:
    """What the unit runs: whether it is this very work is seen from its hash."""
    return PurePosixPath("/run/fleetctl/jobs") / f"{unit_name}.sh"


def serve(fleet: Fleet) -> PurePosixPath:
    """Programs that a source runs for receivers; nothing secret, the same everywhere."""
    return state(fleet) / "serve"


def transfer(fleet: Fleet, what: str) -> PurePosixPath:
    return PurePosixPath("/run/fleetctl/transfer") / f"{fleet.name}-{what}"
