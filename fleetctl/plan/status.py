"""The state of the fleet as one document (design, section 3): what the table, the JSON and the exit code are made from.

Pure. What is unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.commands import paths
from fleetctl.errors import FleetctlError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.observe.facts import BalancerState, Facts, Stopped
from fleetctl.plan import drift, experiment
from fleetctl.plan import release as releases

BAD = ("failed", "parked", "down", "unhealthy", "unreachable")
SERVING = "serving"
WELL = ("ok", None)  # what the balancer sees; None: it does not look
IN_TABLE = {PeerState.UP: "up", PeerState.DRAIN: "draining", PeerState.HELD: "draining", PeerState.OFF: "down"}


def document(
    fleet: Fleet, facts: Mapping[int, Facts], errors: Mapping[int, FleetctlError], peers: tuple[Peer, ...]
) -> dict[str, Any]:
    """One versioned document; machines in joining order, those that did not answer included."""
    balancer = fleet.inventory.balancer
    seen = facts.get(balancer.machine)
    live = seen.balancer if seen else None
    health = {peer.id: peer.health for peer in live.peers} if live else {}
    known = peers if seen is not None else None
    machines = [
        _machine(fleet, machine, facts.get(machine), errors.get(machine), known, health)
        | {"key_reason": _key(fleet, facts.get(machine), seen)}
        for machine in fleet.machines
    ]
    up = sum(peer.state == "up" and peer.health in WELL for peer in live.peers) if live else None
    left = _experiment(facts)
    files = drift.files(fleet, seen) if seen else None
    reason = ", ".join(filter(None, (drift.table(fleet, peers), files))) or None
    strange = (
        left is not None
        or reason is not None
        or (live is not None and live.old_key is not None)
        or any(
            machine["other_balancers"] or machine["unreadable"] or machine["broken_releases"] or machine["key_reason"]
            for machine in machines
        )
    )
    recorded = [f.release for f in facts.values() if f.release]
    current = max(recorded, key=lambda r: (r.get("number", 0), r.get("outcome") != "good"), default=None)
    in_force = releases.newest(recorded)
    return {
        "schema": 1,
        "fleet": fleet.name,
        "verdict": verdict(machines, up or 0, bool(facts), strange=strange),
        "release": {**releases.shown(current), "left_out": list(in_force.left_out)} if current and in_force else None,
        "inventory_ahead": releases.ahead(fleet, in_force) if in_force is not None else None,
        "experiment": left,
        "machines": machines,
        "balancer": {
            "machine": balancer.machine,
            "listen": balancer.listen,
            "unit": _unit(seen, balancer.unit),
            "backends": len(live.peers) if live else None,
            "up": up,
            "config": live.config if live else None,
            "peers": live.version if live else None,
            "drift_reason": reason,
            "files": _files(seen),
            "old_key": _with_the_old_key(live),
        },
    }


def _key(fleet: Fleet, facts: Facts | None, balancer: Facts | None) -> str | None:
    """What is wrong with the key file of a machine that runs something of ours."""
    if facts is None or not any(facts.container(one.name) for one in fleet.on(facts.machine)):
        return None
    return drift.key(fleet, facts, balancer)


def _files(facts: Facts | None) -> dict[str, list[str]] | None:
    """The balancer's files that are not as they were applied; None where that is not known."""
    if facts is None or facts.balancer_files is None:
        return None
    return {how: drift.not_as_applied(facts, how) for how in ("changed", "missing")}


def _with_the_old_key(live: BalancerState | None) -> int | None:
    """How many instances still have it; None while one key is good."""
    keys = [peer.key for peer in live.peers if peer.key is not None] if live else []
    return keys.count("old") if keys else None


def _experiment(facts: Mapping[int, Facts]) -> dict[str, Any] | None:
    marks = {machine: one.experiment for machine, one in facts.items() if one.experiment is not None}
    if not marks:
        return None
    from fleetctl.plan.lock import living

    return experiment.left(marks, [holder.token[:8] for holder in living(facts).values()])


def verdict(machines: list[dict[str, Any]], up: int, anybody: bool, *, strange: bool = False) -> str:
    """`critical`: users are hurt or will be; `warn`: somebody should look; `unknown`: nothing could be seen.

    `up`: backends that the running balancer sends to; `strange`: its table has others than the inventory, its files
    were changed by hand, it takes two keys, another machine has a balancer too, or `bench ab` has changed instances.
    """
    if not anybody:
        return "unknown"
    instances = [instance for machine in machines for instance in machine["instances"]]
    states = {instance["state"] for instance in instances}
    if not up or any(state in BAD for state in states):
        return "critical"
    odd = any(i["drift"] or i["doubtful"] or i["balancer"] != "up" for i in instances)
    return "warn" if states != {SERVING} or odd or strange else "ok"


def _unit(facts: Facts | None, name: str) -> dict[str, Any] | None:
    unit = facts.units.get(name) if facts else None
    return {"active": unit.active, "enabled": unit.enabled, "restarts": unit.restarts} if unit else None


def _machine(
    fleet: Fleet,
    machine: int,
    facts: Facts | None,
    error: FleetctlError | None,
    peers: tuple[Peer, ...] | None,
    health: Mapping[str, str | None],
) -> dict[str, Any]:
    return {
        "id": machine,
        "reachable": facts is not None,
        "error": error.cause if error else None,
        "jobs": {
            name.removeprefix(f"fleetctl-{fleet.name}-"): {
                "state": job.state,
                "done": job.done,
                "total": job.total,
                "words": job.words,
            }
            for name, job in (facts.progress if facts else {}).items()
        },
        "broken_releases": dict(facts.broken_releases) if facts else {},
        "unreadable": [str(paths.release(fleet))] if facts and "release" in facts.failed else [],
        "other_balancers": list(drift.other_balancers(fleet, facts)) if facts else [],
        "instances": [_instance(fleet, one, facts, peers, health.get(one.id)) for one in fleet.on(machine)],
    }


def _instance(
    fleet: Fleet, which: Instance, facts: Facts | None, peers: tuple[Peer, ...] | None, seen: str | None
) -> dict[str, Any]:
    """`seen`: its health as the balancer sees it. `peers` None: the balancer's table is not known."""
    container = facts.container(which.name) if facts else None
    health = facts.health.get(which.index) if facts else None
    peer = next((peer for peer in peers or () if peer.id == which.id), None)
    in_table = IN_TABLE[peer.state] if peer else None if peers is None else "absent"
    if in_table == "up" and seen not in WELL:
        in_table = "down"
    reason = drift.drift(fleet, which, facts) if facts else None
    spec = container.label("spec") if container else None
    tokens = container.label("tokens") if container else None
    return {
        "id": which.id,
        "name": which.name,
        "npus": list(which.devices),
        "port": which.port,
        "address": which.address,
        "state": _state(which, facts, in_table),
        "unit": _unit(facts, which.name),
        "container": {"id": container.id[:12], "state": container.state, "image": container.image_id[:19]}
        if container
        else None,
        "health": {"http": health.http, "model": health.model} if health else None,
        "balancer": in_table,
        "seen": seen,
        "held": peer.state is PeerState.HELD if peer else None,
        "mtp": int(tokens) if tokens and tokens.isdigit() else None,
        "spec": spec,
        "drift": None if facts is None or (container is None and reason is None) else reason is not None,
        "drift_reason": reason,
        "stopped": _mark(facts.stopped if facts else {}, which),
        "parked": _mark(facts.parked if facts else {}, which),
        "doubtful": _mark(facts.doubtful if facts and fleet.inventory.watchdog.enabled else {}, which),
    }


def _mark(marks: Mapping[str, Stopped], which: Instance) -> dict[str, str] | None:
    mark = marks.get(which.name)
    return {"who": mark.who, "when": mark.when, "reason": mark.reason} if mark else None


def _state(which: Instance, facts: Facts | None, in_table: str | None) -> str:
    if facts is None:
        return "unreachable"
    unit, health = facts.units.get(which.name), facts.health.get(which.index)
    if which.name in facts.stopped:
        return "stopped"
    if unit is None or unit.active == "absent":
        return "absent"
    if which.name in facts.parked and unit.active in ("inactive", "failed"):
        return "parked"
    if unit.active == "failed":
        return "parked" if unit.result == "start-limit-hit" or unit.restarts >= 4 else "failed"
    if unit.active != "active" or facts.container(which.name) is None:
        return "restarting" if unit.active == "activating" else "down"
    if health is None or not health.http:
        return "loading"
    if health.http != 200:
        return "unhealthy"
    return "draining" if in_table == "draining" else SERVING


def problems(document: Mapping[str, Any]) -> list[str]:
    """What is wrong, each with the next command."""
    found = [experiment.words(document["experiment"])] if document["experiment"] is not None else []
    release = document["release"]
    half_done = bool(release) and release.get("outcome") == "running"
    again = releases.puts_right(release)
    for machine in document["machines"]:
        if not machine["reachable"]:
            found.append(f"{machine['id']}: {machine['error']}")
            continue
        for one in machine["instances"]:
            found += _instance_problem(one, again, half_done=half_done)
        for path in machine["unreadable"]:
            found.append(f"{machine['id']}: {path} is no record of a release any more: {again} writes it anew")
        broken = machine["broken_releases"].items()
        found += [f"{machine['id']}: {releases.left_behind(path, why)}" for path, why in broken]
        if machine["key_reason"] is not None:
            found.append(f"{machine['id']}: {machine['key_reason']}: {again} puts it right")
        for name in machine["other_balancers"]:
            found.append(f"{machine['id']}: {name}.service is one balancer too many: {again} removes it")
        found += [_job_problem(machine["id"], name, job) for name, job in machine["jobs"].items()]
    found += _balancer_problems(document["balancer"], again)
    if release and release.get("back_to") is not None and document["inventory_ahead"]:
        found.append(
            f"release {release.get('number')} went back to {release['back_to']}: the inventory is ahead "
            "(fleetctl rollout --forward)"
        )
    found += _partial(document)
    if half_done:
        same = f"fleetctl {release.get('command')}"
        # A trial may have been on a machine that is gone.
        back = "; fleetctl rollback goes back" if "--machines" in same and release.get("back_to") is None else ""
        found.append(f"release {release.get('number')} is half rolled out: {same} finishes it{back}")
    return found


def _partial(document: Mapping[str, Any]) -> list[str]:
    """The release in force was rolled out to some of the machines only; those without a single unit are to join yet."""
    release, machines = document["release"] or {}, document["machines"]
    there = [one["id"] for one in machines if any(i["state"] != "absent" for i in one["instances"])]
    # What was left out may run the same: a trial on one machine that was taken back there.
    differs = {one["id"] for one in machines if any(i["drift"] for i in one["instances"])}
    out = [machine for machine in there if machine in release.get("left_out", ()) and machine in differs]
    if not out or release["outcome"] != "good":
        return []
    own = ",".join(str(machine) for machine in there if machine not in out) or "none of these"
    back = "" if release.get("back_to") is not None else "; fleetctl rollback goes back"
    return [
        f"release {release['number']} is on {own}, and not on {','.join(map(str, out))}: fleetctl rollout --resume "
        f"brings it to all{back}"
    ]


def _balancer_problems(balancer: Mapping[str, Any], again: str) -> list[str]:
    found = []
    if balancer["backends"] is None:
        found.append(f"balancer on {balancer['machine']} does not answer: fleetctl logs balancer --error")
    if balancer["drift_reason"] is not None:
        shows = "fleetctl balancer diff shows how, " if any((balancer["files"] or {}).values()) else ""
        found.append(f"balancer: {balancer['drift_reason']}: {shows}{again} puts it right")
    if (old := balancer["old_key"]) is not None:
        found.append(f"two API keys are good, {old} instances have the old one: fleetctl key rotate finishes it")
    return found


def _job_problem(machine: int, name: str, job: Mapping[str, Any]) -> str:
    """Work that goes on there, or ended, while nobody follows it."""
    share = f", {100 * job['done'] // job['total']} %" if job["total"] else ""
    what = {"running": "goes on", "done": "has ended well", "failed": "has failed"}[job["state"]]
    return f"{machine}: the job {name} {what}{share}: the command that started it follows it when it is run again"


def _instance_problem(one: Mapping[str, Any], again: str, *, half_done: bool) -> list[str]:
    """What it does wrong, and besides that what was changed by hand. `half_done`: its release is not rolled out yet.

    `again`: the command that puts right what is not as the release in force has it.
    """
    found = _state_problem(one, again)
    doubt = one["doubtful"]["reason"] if one["doubtful"] is not None else None
    if half_done and one["state"] == "draining" and not one["held"]:
        # It may be the canary that failed: only the rollout that proves it may send users there again.
        sick = [f"the balancer finds it {one['seen']}"] if one["seen"] not in WELL else []
        why = "".join(f", and {words}" for words in (*sick, doubt) if words)
        found = [
            f"{one['id']} is drained, by a rollout that did not end well{why}: it comes back when that is finished"
        ]
    elif doubt is not None and one["state"] in (SERVING, "draining"):
        found.append(f"{one['id']}: {doubt}: fleetctl restart {one['id']}")
    if one["drift"]:
        found.append(f"{one['id']}: {one['drift_reason']}: {again} puts it right")
    return found


def _state_problem(one: Mapping[str, Any], again: str) -> list[str]:
    name, state = one["id"], one["state"]
    if state == "stopped":
        note = one["stopped"]
        why = f" ({note['reason']})" if note["reason"] else ""
        return [f"{name} stopped on purpose by {note['who']}{why}: fleetctl start {name}"]
    if state == "parked" and one["parked"] is not None:
        why = one["parked"]["reason"]
        return [f"{name} was parked by the watchdog ({why}): fleetctl logs {name}; fleetctl start {name}"]
    if state == "parked":
        return [f"{name} is parked after too many starts: fleetctl logs {name}; fleetctl start {name}"]
    if state in BAD:
        return [f"{name} is {state}: fleetctl logs {name}; fleetctl restart {name}"]
    if state == "draining":
        why = "as somebody asked" if one["held"] else "by a command that was cut short"
        return [f"{name} is drained, {why}: fleetctl undrain {name}"]
    if state in ("loading", "restarting"):
        return [f"{name} is {state}: fleetctl logs {name} -f"]
    if state == "absent":
        gone = f"fleetctl add-machine {name.split('/')[0]}, or delete it from the inventory"
        return [f"{name} has no unit: {gone}"]
    if one["balancer"] == "down" and one["seen"] not in WELL:
        return [f"{name} serves, and the balancer finds it {one['seen']}: fleetctl logs balancer --error"]
    if one["balancer"] not in ("up", None):
        return [f"{name} serves and is not in rotation: {again}"]
    return []
