"""The step kinds that take a machine out, and what the inventory no longer lists: drained first, then removed. Pure.

Only what is ours is removed: units by their header, containers by their label. Image and model stay unless the person
says --purge, and then only what fleetctl brought goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from fleetctl.balancer.config import max_num_seqs
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Container, Facts
from fleetctl.plan import drift, files, gate
from fleetctl.plan.build import op
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Group, Node, Operation, Run, Wait, sequence
from fleetctl.plan.release import words as release_words
from fleetctl.plan.rotation import share
from fleetctl.plan.tidy import ended_jobs

PLAYBOOK = "remove-machine"
STOPPING = 240.0  # seconds: systemd waits for the engine's own shutdown
LONG = 600.0  # seconds: tens of gigabytes
GONE = ("down", "ejected")  # what the balancer says of a peer that takes nothing


def machine_of(peer: Peer) -> str:
    return peer.id.partition("/")[0]


def peers_on(context: Context, machine: int) -> tuple[Peer, ...]:
    return tuple(peer for peer in context.peers if machine_of(peer) == str(machine))


def strangers(fleet: Fleet, peers: Sequence[Peer]) -> tuple[Peer, ...]:
    """Peers of the table that are no instance of the inventory: it was deleted there before it left."""
    known = {instance.id for instance in fleet.instances}
    return tuple(peer for peer in peers if peer.id not in known)


def without(gone: Sequence[Peer]) -> Callable[[tuple[Peer, ...]], tuple[Peer, ...]]:
    """An edit of the table. Everybody else keeps place and state."""
    ids = {peer.id for peer in gone}
    return lambda peers: tuple(peer for peer in peers if peer.id not in ids)


def _draining(which: Sequence[Peer]) -> Callable[[tuple[Peer, ...]], tuple[Peer, ...]]:
    ids = {peer.id for peer in which}
    return lambda peers: tuple(
        replace(peer, state=PeerState.DRAIN) if peer.id in ids and peer.state is PeerState.UP else peer
        for peer in peers
    )


def drain(context: Context, machine: int) -> Group:
    """No new requests for any instance of the machine, then wait for those in flight."""
    return sequence("drain", *_drained(context, "drain", str(machine), peers_on(context, machine)))


def _drained(context: Context, step: str, target: str, which: Sequence[Peer]) -> Iterator[Operation]:
    up = [peer for peer in which if peer.state is PeerState.UP]
    if up:
        words = f"drain {', '.join(peer.id for peer in up)}: no new requests"
        yield Operation(step, context.balancer, target, words, context.edit(_draining(up)))
    cap = context.fleet.inventory.rollout.drain_timeout
    for peer in which:
        if peer.state is PeerState.OFF or _takes_nothing(context, peer):
            continue
        ask = Script("state_ask", (context.state_url,))
        wait = Wait(ask, gate.drained(peer), cap, 15, late_is_fine=context.plain)
        yield Operation(step, context.balancer, peer.id, "wait for requests in flight", wait)


def _takes_nothing(context: Context, peer: Peer) -> bool:
    """The balancer finds it dead; where it does not look, the machine does not answer us either."""
    state = context.facts[context.balancer].balancer
    health = next((one.health for one in state.peers if one.id == peer.id), None) if state else None
    if health is None:
        return context.plain and machine_of(peer) not in map(str, context.facts)
    return health in GONE


def leave(context: Context, machine: int) -> Group:
    """Its instances leave the balancer's table, and what was tried on it alone is in force no more, dead or not."""
    put_back = files.recorded(context, "leave", context.balancer) if machine == context.machines[-1] else ()
    return sequence("leave", _out(context, "leave", str(machine), peers_on(context, machine)), *put_back)


def after_leave(context: Context, machine: int) -> Context:
    return replace(context, peers=without(peers_on(context, machine))(context.peers))


def _out(context: Context, step: str, target: str, which: Sequence[Peer]) -> Operation | None:
    if not which:
        return None
    edit = without(which)
    table = edit(context.peers)
    words = f"leave: {len(context.peers)} -> {len(table)} backends, {share(context, table)} of sessions move"
    return Operation(step, context.balancer, target, words, context.edit(edit))


def dismiss(context: Context, machine: int) -> Group:
    """Units stopped, disabled and removed, with their containers; work of an interrupted copy is ended."""
    fleet, facts = context.fleet, context.facts.get(machine)
    if facts is None:
        everything = Script("remove_all", (fleet.name, paths.job(fleet, "*"), paths.watchdog_unit(fleet)), fleet.name)
        words = f"stop, disable and remove the units and containers of fleet {fleet.name}"
        return sequence("dismiss", op("dismiss", machine, words, Run(everything, timeout=4 * STOPPING)))
    units = dict(facts.own_units)
    for one in fleet.on(machine):
        unit = facts.units.get(one.name)
        if unit is not None and unit.active != "absent":  # also one whose header was edited away
            units.setdefault(one.name, one.id)
    jobs = [
        op("dismiss", machine, f"end {job}", Run(Script("job_stop", (f"{job}.service",), fleet.name)))
        for job, state in facts.jobs.items()
        if state == "running"
    ]
    return sequence(
        "dismiss",
        *jobs,
        *ended_jobs(context, "dismiss", machine),
        _watchdog(context, machine),
        *_removed(context, "dismiss", machine, units, _ours(fleet, facts)),
        *_no_balancer(context, "dismiss", machine),
    )


def _watchdog(context: Context, machine: int) -> Operation | None:
    """It goes first: it would bring back what is stopped here."""
    fleet, facts = context.fleet, context.facts[machine]
    if not any(str(path) in facts.files for path in paths.watchdog_files(fleet)):
        return None
    script = Script("remove_watchdog", (paths.watchdog_unit(fleet), paths.watchdog(fleet)), fleet.name)
    return op("dismiss", machine, "stop, disable and remove the watchdog", Run(script))


def _ours(fleet: Fleet, facts: Facts) -> list[Container]:
    return [one for one in facts.containers or () if one.label("fleet") == fleet.name]


def _removed(
    context: Context, step: str, machine: int, units: dict[str, str], containers: Sequence[Container]
) -> Iterator[Node]:
    """`units`: instance ids by name."""
    fleet = context.fleet
    for name, id in units.items():
        words = f"stop, disable and remove {name}.service"
        yield op(
            step, machine, words, Run(Script("remove_unit", (f"{name}.service",), fleet.name), timeout=STOPPING), id
        )
    for one in containers:
        script = Script("remove_container", (one.id, fleet.name), fleet.name)
        target = one.label("instance") or str(machine)
        yield op(step, machine, f"remove container {one.name}", Run(script, timeout=STOPPING), target)


def purge(context: Context, machine: int) -> Group:
    """With --purge: images and copies of the model that fleetctl brought, and the compile caches."""
    fleet, facts = context.fleet, context.facts.get(machine)
    if not context.purge or facts is None:
        return sequence("purge")
    record, path = paths.images(fleet), fleet.inventory.model.path
    operations = [
        op(
            "purge",
            machine,
            f"remove image {id.removeprefix('sha256:')[:12]}, unless something else uses it",
            Run(Script("tidy_image", (record, id), fleet.name), timeout=LONG),
        )
        for id in facts.brought
    ]
    if _brought_model(fleet, facts):
        script = Script("purge_model", (path,), fleet.name)
        operations.append(op("purge", machine, f"remove the model {path}", Run(script, timeout=LONG)))
    if operations or _state_there(context, machine):
        folders = (paths.caches(fleet), paths.state(fleet) / "manifest")
        script = Script("purge_rest", (paths.transfer(fleet, "image").name, *folders), fleet.name)
        words = "remove compile caches, manifests and parts of images"
        operations.append(op("purge", machine, words, Run(script, timeout=LONG)))
    return sequence("purge", *operations)


def _brought_model(fleet: Fleet, facts: Facts) -> bool:
    """Whole or in part."""
    model = facts.model
    return not fleet.inventory.model.shared and model is not None and bool(model.versions or model.arrived)


def _state_there(context: Context, machine: int) -> bool:
    facts = context.facts[machine]
    key = str(paths.api_key(context.fleet)) in facts.files
    return key or facts.release is not None or bool(facts.releases) or bool(facts.stopped)


def forget(context: Context, machine: int) -> Group:
    """The key's file and what the machine knows of the fleet; saved definitions and the audit log stay.

    Keys of copies that were cut short go too: those it may still log in elsewhere with, and those of others here.
    """
    fleet = context.fleet
    keys = [
        op("forget", where, f"revoke the key of a transfer ({tag})", _revoke(context, where, tag))
        for where, facts in context.facts.items()
        for tag in facts.transfer_tags
        if where == machine or tag.startswith(f"{fleet.name}-{machine}-")
    ]
    if machine in context.facts and not _state_there(context, machine):
        return sequence("forget", *keys)
    script = Script("forget_fleet", (paths.etc(fleet), paths.state(fleet)), fleet.name)
    gone = op("forget", machine, "remove the key's file and the fleet's releases", Run(script))
    return sequence("forget", *keys, gone)


def _revoke(context: Context, where: int, tag: str) -> Run:
    return Run(Script("transfer_revoke", (context.users.get(where, "root"), tag), context.fleet.name))


def orphans(context: Context, machine: int) -> Group:
    """What the inventory no longer lists: out of the table, and removed from the machines that it still lists.

    Peers of machines that are gone from the inventory go with the first machine of the command.
    """
    fleet, facts = context.fleet, context.facts[machine]
    peers = _orphans(context, machine)
    ids = {instance.id for instance in fleet.instances}
    names = {instance.name for instance in fleet.on(machine)}
    units = {name: id for name, id in facts.own_units.items() if id not in ids and name not in names}
    containers = [
        one for one in _ours(fleet, facts) if one.label("instance") not in {None, *ids} and one.name not in names
    ]
    return sequence(
        "orphans",
        *_drained(context, "orphans", str(machine), peers),
        _out(context, "orphans", str(machine), peers),
        *_removed(context, "orphans", machine, units, containers),
        *_no_balancer(context, "orphans", machine),
    )


def _no_balancer(context: Context, step: str, machine: int) -> Iterator[Operation]:
    """There is one balancer: it went to another machine, or got another name."""
    fleet, names = context.fleet, drift.other_balancers(context.fleet, context.facts[machine])
    if step == "orphans" and _just_moved(context):
        return  # whoever points at it gets a moment to point elsewhere
    # Files first: what is left by a kill has its unit still, and is seen again.
    if names and machine != context.balancer:
        left = (paths.balancer(fleet), *paths.balancer_files(fleet))
        yield op(step, machine, "remove the balancer's files", Run(Script("remove_folders", left, fleet.name)))
    for name in names:
        words = f"stop, disable and remove {name}.service: the balancer is on {context.balancer}"
        script = Script("remove_unit", (f"{name}.service",), fleet.name)
        yield op(step, machine, words, Run(script, timeout=STOPPING))


def _just_moved(context: Context) -> bool:
    """The balancer is started by this very plan: users are still sent to the machine that had it."""
    return context.facts[context.balancer].balancer is None


def moving(context: Context) -> list[str]:
    """What a plan says while two machines have a balancer."""
    return [
        f"{machine} keeps its balancer, and its table as it is: point the gateway at {context.balancer}:"
        f"{context.fleet.inventory.balancer.listen}, then fleetctl rollout --resume removes {name}.service there"
        for machine, facts in context.facts.items()
        for name in drift.other_balancers(context.fleet, facts)
        if _just_moved(context)
    ]


def after_orphans(context: Context, machine: int) -> Context:
    after = replace(context, peers=without(_orphans(context, machine))(context.peers))
    object.__setattr__(after, "comparisons", context.comparisons)
    return after


def _orphans(context: Context, machine: int) -> tuple[Peer, ...]:
    listed = set(map(str, context.fleet.machines))
    first = machine == context.machines[0]
    return tuple(
        peer
        for peer in strangers(context.fleet, context.peers)
        if machine_of(peer) == str(machine) or (first and machine_of(peer) not in listed)
    )


def refusal(fleet: Fleet, machines: Sequence[int]) -> tuple[str, str] | None:
    """Why one of these machines cannot be removed, and what to do instead."""
    inventory = fleet.inventory
    if inventory.balancer.machine in machines:
        return (
            f"{inventory.balancer.machine} has the balancer, which everybody's requests go through",
            "name another machine as balancer.machine in the inventory, fleetctl rollout --resume, then this again",
        )
    if inventory.source in machines:
        return (
            f"{inventory.source} is the source that image and model are copied from",
            "name another machine that has both as source in the inventory, fleetctl rollout --resume, then this again",
        )
    return None


def overload(context: Context) -> str | None:
    """Why the instances that stay could not take what the balancer sees; None when they can, or nobody leaves."""
    leaving = {peer.id for machine in context.machines for peer in peers_on(context, machine)}
    if not any(peer.id in leaving and peer.state is PeerState.UP for peer in context.peers):
        return None
    state = context.facts[context.balancer].balancer
    seen = {peer.id: peer for peer in state.peers} if state else {}
    stay = [
        peer
        for peer in context.peers
        if peer.id not in leaving
        and peer.state is PeerState.UP
        and not (peer.id in seen and seen[peer.id].health in GONE)
    ]
    if not stay:
        return "no backend would be left: every request would be answered 503"
    load = sum(peer.inflight or 0 for peer in seen.values())
    room = len(stay) * max_num_seqs(context.fleet)
    if load <= room:
        return None
    return f"{load} requests are in flight, and the {len(stay)} instances that stay compute {room} at once"


def notes(context: Context) -> tuple[str, ...]:
    """What the person should know before a yes."""
    fleet = context.fleet
    listed = ", ".join(map(str, context.machines))
    found = [
        f"delete machine {listed} from {fleet.path.name} afterwards: until then status shows it without instances, "
        "and rollout adds it back"
    ]
    found += _way_back(context)
    state = context.facts[context.balancer].balancer
    if any(peers_on(context, m) for m in context.machines) and not any(
        peer.inflight is not None for peer in (state.peers if state else ())
    ):
        found.append(
            "the balancer does not say how many requests are in flight: whether the rest can take them is open"
        )
    for machine in context.machines:
        found += _notes_on(context, machine)
    return tuple(found)


def _way_back(context: Context) -> list[str]:
    """The release in force goes with the machines: nobody else runs it."""
    back, current = context.release, context.current
    if back is None or current is None:
        return []
    on = ", ".join(str(machine) for machine in context.machines if machine not in current.left_out)
    where = f"is on {on} only and goes with it" if on else "is nowhere"
    return [
        f"release {current.number} ({release_words(current.overrides)}) {where}: in force is then {back.number}, "
        f"as {back.back_to} was ({release_words(back.overrides)})"
    ]


def _notes_on(context: Context, machine: int) -> list[str]:
    fleet, facts = context.fleet, context.facts.get(machine)
    if facts is None:
        return [
            f"{machine} does not answer: it leaves the balancer's table, what is there stays there; its units start "
            f"its instances at a boot, nobody sends to them. Once it is back: fleetctl remove-machine {machine}"
        ]
    saved = paths.state(fleet)
    stays = f"{machine} keeps {saved}/saved and {saved}/audit.log"
    if not context.purge:
        return [f"{stays}, the image, the model and its compile caches (--purge removes those that fleetctl brought)"]
    model, path = facts.model, fleet.inventory.model.path
    found = [stays]
    if facts.image is not None and facts.image.id not in facts.brought:
        found.append(f"{machine} keeps the image, which fleetctl did not bring: docker rmi {fleet.image}")
    if model is not None and model.present and not _brought_model(fleet, facts):
        why = "which is shared" if fleet.inventory.model.shared else "which fleetctl did not bring"
        found.append(f"{machine} keeps the model {path}, {why}")
    return found
