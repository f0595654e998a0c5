"""All checks of a run, from what was seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fleetctl.errors import FleetctlError
from fleetctl.verify import behaviour, entrance, gates, machines
from fleetctl.verify.check import Check, Status, Where, skipped
from fleetctl.verify.evidence import Evidence


def everything(evidence: Evidence) -> list[Check]:
    """Every check once for each door it applies to, in the order in which a person reads them."""
    found = list(machines.checks(evidence))
    direct, out = gates.direct(evidence)
    found += direct
    ids = [instance.id for instance in evidence.asked]
    found += _behaviour(evidence, Where.DIRECT, ids, out)
    found.append(behaviour.speculation(evidence, out))
    found += _balancer(evidence, ids, out, list(found))
    return found + _outside(evidence, out, found)


def _behaviour(
    evidence: Evidence, where: Where, ids: Sequence[str], out: Mapping[str, str], before: Iterable[Check] = ()
) -> list[Check]:
    found = list(behaviour.checks(evidence, where, ids, out, before))
    found.insert(2, behaviour.repeats(evidence, where, ids, out))
    return found


def _balancer(evidence: Evidence, ids: Sequence[str], out: Mapping[str, str], direct: Sequence[Check]) -> list[Check]:
    machine = evidence.fleet.inventory.balancer.machine
    if machine not in evidence.facts:
        return [skipped("answers", Where.BALANCER, "/health answers", f"machine {machine} does not answer")]
    door = entrance.answers(evidence, Where.BALANCER)
    if door.status is not Status.PASS:
        return [door]
    without = _not_through(evidence, out)
    trips = evidence.trips[Where.BALANCER]
    found = [door, entrance.truth(evidence, Where.BALANCER)]
    found.append(entrance.routed(evidence, Where.BALANCER, trips))
    found.append(entrance.reached(evidence, trips))
    found.append(entrance.sticky(evidence))
    found.append(entrance.after_reload(evidence, evidence.first_trips, evidence.later_trips))
    found += entrance.per_backend(evidence, Where.BALANCER, ids, without)
    found += _behaviour(evidence, Where.BALANCER, ids, without, direct)
    found.append(behaviour.spread(evidence, ids, without))
    found.append(entrance.unguarded(evidence, Where.BALANCER))
    found.append(entrance.cors(evidence, Where.BALANCER))
    return found


def _not_through(evidence: Evidence, out: Mapping[str, str]) -> dict[str, str]:
    """Who cannot be asked through the balancer: out for a reason of its own, or not in rotation."""
    health = evidence.health_by_balancer
    away = {id: f"is {word} for the balancer" for id, word in health.items() if word != "ok"}
    return {**away, **evidence.drained, **out}


def _outside(evidence: Evidence, out: Mapping[str, str], before: Sequence[Check]) -> list[Check]:
    """What fails on the balancer's machine already is not said again."""
    expected = "/health answers through public_url"
    if evidence.no_outside is not None:
        return [skipped("answers", Where.OUTSIDE, expected, evidence.no_outside)]
    nearer = next(check for check in before if check.id == "answers" and check.where is Where.BALANCER)
    if nearer.status is not Status.PASS and evidence.fleet.inventory.balancer.machine in evidence.facts:
        return [skipped("answers", Where.OUTSIDE, expected, "the balancer itself does not answer")]
    door = entrance.answers(evidence, Where.OUTSIDE)
    if door.status is not Status.PASS:
        return [door]
    ids = list(dict.fromkeys(who for who, _ in evidence.all(Where.OUTSIDE, "models")))
    without = _not_through(evidence, out)
    found = [door, entrance.truth(evidence, Where.OUTSIDE)]
    found.append(entrance.routed(evidence, Where.OUTSIDE, evidence.trips[Where.OUTSIDE]))
    found += entrance.per_backend(evidence, Where.OUTSIDE, ids, without)
    found += _behaviour(evidence, Where.OUTSIDE, ids, without, before)
    found.append(entrance.unguarded(evidence, Where.OUTSIDE))
    found.append(entrance.cors(evidence, Where.OUTSIDE))
    known = {check.id for check in before if check.where is Where.BALANCER and entrance.failed(check)}
    return [
        skipped(check.id, Where.OUTSIDE, check.expected, "fails at the balancer itself") if check.id in known else check
        for check in found
    ]


def exit_code(checks: Iterable[Check]) -> int:
    """0: all passed or warned · 1: something failed · 4: only machines that do not answer failed."""
    bad = [check for check in checks if check.status is Status.FAIL]
    if not bad:
        return 0
    return FleetctlError.exit_code if any(not check.unreachable for check in bad) else 4
