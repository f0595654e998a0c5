"""Shell completion: machines and instances from the inventory. A broken inventory completes nothing."""

from __future__ import annotations

from fleetctl.errors import FleetctlError


def _fleet_words(*, instances: bool) -> list[str]:
    from fleetctl.fleet import load

    try:
        fleet = load.load(load.find())
    except (FleetctlError, OSError):
        return []
    machines = [str(machine) for machine in fleet.machines]
    return [*machines, "balancer", *(instance.id for instance in fleet.instances)] if instances else machines


def machines(incomplete: str) -> list[str]:
    return [word for word in _fleet_words(instances=False) if word.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    return [word for word in _fleet_words(instances=True) if word.startswith(incomplete)]
