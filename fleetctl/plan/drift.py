"""What was changed by hand on a machine, in words: `status`, plans and `restart` say the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.balancer.peers import Peer, of_instance
from fleetctl.commands import docker, paths, units
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.observe.facts import Facts

UNIT = "its unit file was changed by hand"
GONE = "its unit file is gone"
KEY_MODE = "600 0"
MOST = 4  # files that are named


def by_hand(which: Instance, facts: Facts) -> str | None:
    """Why systemd would not start what fleetctl wrote; None when it would, or when that cannot be told.

    What fleetctl wrote is named by the unit's own header, so a newer inventory or fleetctl is no change by hand.
    """
    text = facts.unit_texts.get(str(paths.unit(which.name)))
    if text is not None and units.edited(text):
        return UNIT
    if dropins := own_dropins(which, facts):
        return f"its unit file was changed by hand ({', '.join(dropins)})"
    container = facts.container(which.name)
    if text is None and container is not None and container.state == "running" and container.label("fleet"):
        return GONE  # it was started from one: it runs until it ends, and would not start again
    return None


def own_dropins(which: Instance, facts: Facts) -> tuple[str, ...]:
    """Drop-ins that are for this unit alone, as `systemctl edit` leaves them."""
    unit = facts.units.get(which.name)
    folder = f"{paths.unit(which.name)}.d/"
    return tuple(path for path in (unit.dropins if unit else ()) if path.startswith(folder))


def key(fleet: Fleet, facts: Facts, balancer: Facts | None) -> str | None:
    """What is wrong with a machine's API key file, beside the balancer's, which has the key in force and, while it is
    changed, the one before. None where nothing is, or where that cannot be told."""
    path, good = str(paths.api_key(fleet)), set[str]()
    if facts.key_mode not in (None, KEY_MODE):
        return f"others than root may read its API key file ({facts.key_mode})"
    if balancer is not None:
        good = {balancer.files[one] for one in (path, str(paths.old_key(fleet))) if one in balancer.files}
    if not good or (path in facts.files and facts.files[path] in good):
        return None
    return "its API key file has another key than the balancer's" if path in facts.files else "its API key file is gone"


def drift(fleet: Fleet, which: Instance, facts: Facts) -> str | None:
    """The first thing that is not as the desired state has it; None when all is, or when nothing runs to compare."""
    if (words := by_hand(which, facts)) is not None:
        return words
    container, unit = facts.container(which.name), facts.units.get(which.name)
    if container is not None:
        if container.label("fleet") != fleet.name:
            return "its container was replaced by hand"
        wanted = docker.spec(docker.run_arguments(fleet, which, facts.topology))
        if container.label("spec") != wanted:
            return _flags(fleet, container.label("tokens"), wanted, facts.unit_texts.get(str(paths.unit(which.name))))
    if unit is not None and unit.active == "active" and unit.enabled not in ("enabled", "absent"):
        return f"its unit is {unit.enabled}: it would not come back after a reboot"
    return None


def _flags(fleet: Fleet, tokens: str | None, wanted: str, text: str | None) -> str:
    if tokens != str(fleet.tokens or 0):
        return f"it runs with mtp {tokens or 'unknown'}, {fleet.tokens or 0} is wanted"
    if text is not None and f" spec={wanted} " in text.partition("[Unit]")[0]:
        return "its container was not started from its unit file"
    return "its flags, mounts or devices are not those that are wanted"


def table(fleet: Fleet, peers: Iterable[Peer]) -> str | None:
    """What in the balancer's table is not of the inventory: an edit by hand, or another inventory, put it there."""
    known = {one.id: one for one in fleet.instances}
    strange = [
        f"{peer.id} {peer.address} weight {peer.weight}"
        for peer in peers
        if peer.id not in known or peer != of_instance(fleet, known[peer.id], peer.state)
    ]
    return f"its table has {', '.join(strange)}, which the inventory has not" if strange else None


def files(fleet: Fleet, facts: Facts) -> str | None:
    """What became of the balancer's files since they were applied; None when nothing, or when that is not known."""
    found, folder = [], f"{paths.balancer(fleet)}/"
    for how, is_, are, words in (("changed", "was", "were", "changed by hand"), ("missing", "is", "are", "gone")):
        if names := [path.removeprefix(folder) for path in not_as_applied(facts, how)]:
            more = [f"{len(names) - MOST} more"] if len(names) > MOST else []
            found.append(f"its {' and '.join([', '.join(names[:MOST]), *more])} {are if names[1:] else is_} {words}")
    return ", ".join(found) or None


def not_as_applied(facts: Facts, how: str) -> list[str]:
    """Paths of the balancer's files that are `changed` or `missing`."""
    return sorted(path for path, found in (facts.balancer_files or {}).items() if found == how)


def other_balancers(fleet: Fleet, facts: Facts) -> tuple[str, ...]:
    """Units of this fleet's balancer on a machine that has it no longer, or under a name that it has no longer."""
    inventory = fleet.inventory.balancer
    named = {inventory.unit} if facts.machine == inventory.machine else set()
    return tuple(name for name in facts.own_balancers if name not in named)
