"""`bench ab` on the machines: marked before anything is changed, drained before it is stopped, and put back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fleetctl.balancer import peers
from fleetctl.balancer.peers import PeerState
from fleetctl.commands import docker, paths, units
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import Facts, Stopped
from fleetctl.observe.lock import Holder, LockState, Process
from fleetctl.plan import arms, expand, experiment, playbook, release, status
from fleetctl.plan.context import Context
from fleetctl.plan.experiment import Experiment
from fleetctl.plan.operation import EditPeers, Group, Operation, Plan, Run
from fleetctl.plan.release import Release
from fleetctl.plan.steps import STEPS

from ..conftest import TOPOLOGY
from .test_expand import context, walk, whole

MARK = Experiment("0123abcd", "2026-08-29T12:00:00Z", "ops@laptop", (3, 4, 5), ("67/0", "67/1", "69/0"), 7)


def now(fleet: Fleet, facts: dict[int, Facts] | None = None, **more: object) -> Context:
    table = peers.of(fleet, {}, fleet.machines)
    return context(fleet, facts or whole(fleet), tuple(fleet.machines), peers=table, **more)


def spread(fleet: Fleet) -> dict[str, int]:
    return {one.id: 3 + place % 3 for place, one in enumerate(fleet.instances)}


def a_round(fleet: Fleet, mark: Experiment | None = None) -> Plan:
    return arms.change(now(fleet), spread(fleet), "bench ab", mark)


def test_the_mark_is_on_every_machine_before_anything_is_changed(fleet: Fleet) -> None:
    wanted = replace(MARK, instances=tuple(spread(fleet)))
    found = a_round(fleet, wanted).operations
    first = found[: len(fleet.machines)]
    assert {op.machine for op in first} == set(fleet.machines)
    assert {op.summary for op in first} == {f"write {paths.experiment(fleet)}"}
    action = first[0].action
    assert isinstance(action, Run)
    assert json.loads(bytes(action.stdin)) == wanted.document  # type: ignore[arg-type]
    assert not any("experiment" in op.summary for op in a_round(fleet).operations), "once is enough"


def test_a_machine_that_has_no_part_in_it_gets_no_mark(fleet: Fleet) -> None:
    marked = arms.begin(now(fleet), MARK).operations()
    assert [op.machine for op in marked] == [69, 67]


def test_every_instance_is_drained_restarted_and_gated_with_its_own_arm(fleet: Fleet) -> None:
    found = a_round(fleet)
    for which in fleet.instances:
        own = [op for op in found.operations if op.target == which.id]
        stop = next(n for n, op in enumerate(own) if op.summary.startswith("stop"))
        assert own[0].summary == "drain: no new requests"
        assert 0 < stop < [op.step for op in own].index("gate") < len(own) - 1
        assert own[-1].summary == "wait until the balancer sends to it"
        assert f"(mtp {spread(fleet)[which.id]})" in own[stop].summary
    texts = unit_texts(found)
    wanted = fleet.with_overrides(Overrides(tokens=5))
    which = next(one for one in fleet.instances if spread(fleet)[one.id] == 5)
    assert texts[which.machine, str(paths.unit(which.name))] == units.instance(wanted, which, TOPOLOGY)[0]


def unit_texts(plan: Plan) -> dict[tuple[int, str], str]:
    writes = [op for op in plan.operations if op.summary.startswith("write /etc/systemd")]
    return {(op.machine, op.summary.split()[1]): bytes(op.action.stdin).decode() for op in writes}  # type: ignore[union-attr, arg-type]


def test_an_instance_that_runs_its_arm_already_is_started_afresh_all_the_same(fleet: Fleet) -> None:
    found = a_round(fleet)
    same = next(one for one in fleet.instances if spread(fleet)[one.id] == fleet.tokens)
    own = [op for op in found.operations if op.target == same.id]
    assert any(op.summary.startswith("stop") for op in own)
    assert not any(same.machine == machine and same.name in path for machine, path in unit_texts(found))


def test_never_more_than_max_unavailable_are_out_at_once(fleet: Fleet) -> None:
    limited = replace(now(fleet), max_unavailable="2")
    for mark in (None, MARK):
        found = arms.change(limited, spread(fleet), "bench ab", mark)
        for group in walk(found.root):
            out = [op for op in group.operations() if isinstance(op.action, EditPeers) and "drain" in op.summary]
            assert not group.parallel or len(out) <= 2
        assert sum("drain" in op.summary for op in found.operations) == len(fleet.instances)


def test_the_first_of_every_new_arm_goes_alone_and_is_asked_before_the_others_follow(fleet: Fleet) -> None:
    found = a_round(fleet, MARK)
    alone = [child for child in found.root.children if isinstance(child, Group) and not child.parallel]
    assert len(alone) == 2, "mtp 3 and 5; 4 is what the release has"
    for group in alone:
        assert [op.step for op in group.operations()].count("canary") == 1
    asked = [op for op in found.operations if op.step == "canary"]
    assert {spread(fleet)[op.target] for op in asked} == {3, 5}
    assert not [op for op in a_round(fleet).operations if op.step == "canary"], "later rounds know their arms"


def test_what_a_person_stopped_or_drained_has_no_part_in_it(fleet: Fleet) -> None:
    facts = whole(fleet)
    name = fleet.on(66)[1].name
    facts[66] = replace(facts[66], stopped={name: Stopped("ops", "2026-08-29T00:00:00Z", "fan")})
    table = peers.of(fleet, {}, fleet.machines)
    table = tuple(replace(p, state=PeerState.HELD) if p.id == "67/2" else p for p in table)
    found = arms.candidates(context(fleet, facts, tuple(fleet.machines), peers=table), fleet.instances)
    assert {one.id for one in fleet.instances} - {one.id for one in found} == {"66/1", "67/2"}


def half_way(fleet: Fleet) -> dict[int, Facts]:
    """Killed after 67/0 and 67/1 had changed to five tokens: as the machines look then."""
    facts, five = whole(fleet), fleet.with_overrides(Overrides(tokens=5))
    containers = list(facts[67].containers or ())
    for which in fleet.on(67)[:2]:
        text, spec = units.instance(five, which, TOPOLOGY)
        labels = {**containers[which.index].labels, "fleetctl.spec": spec, "fleetctl.tokens": "5"}
        containers[which.index] = replace(containers[which.index], labels=labels)
        path = str(paths.unit(which.name))
        facts[67] = replace(facts[67], unit_texts={**facts[67].unit_texts, path: text})
        facts[67].files[path] = "changed"
    facts[67] = replace(facts[67], containers=tuple(containers), experiment=MARK.document)
    facts[69] = replace(facts[69], experiment=MARK.document)
    return facts


def in_force(fleet: Fleet) -> Release:
    return Release(7, fleet.overrides, "2026-08-01T00:00:00Z", "ops", "rollout", "good", release.whole(fleet))


def put_back(fleet: Fleet, facts: dict[int, Facts]) -> Plan:
    current = in_force(fleet)
    known = {m: replace(one, release=current.document) for m, one in facts.items()}
    found = now(fleet, known, current=current, release=current)
    return expand.expand(playbook.load("rollout", set(STEPS)), found, "bench ab --restore")


def test_what_was_left_half_way_is_put_back_by_the_release_and_the_mark_goes_last(fleet: Fleet) -> None:
    found = put_back(fleet, half_way(fleet))
    stopped = [op.target for op in found.operations if op.summary.startswith("stop")]
    assert stopped == ["67/0", "67/1"]
    assert all("mtp 5 -> 4" in op.summary for op in found.operations if op.summary.startswith("stop"))
    own = [op for op in found.operations if op.machine == 67]
    removals = [op for op in found.operations if str(paths.experiment(fleet)) in op.summary]
    assert [op.machine for op in removals] == [69, 67]
    assert own[-1] in removals


def test_a_mark_alone_is_reason_enough_to_look_and_to_take_it_away(fleet: Fleet) -> None:
    """Killed between the mark and the first change."""
    facts = whole(fleet)
    facts[69] = replace(facts[69], experiment=MARK.document)
    found = put_back(fleet, facts)
    assert not any(op.summary.startswith("stop") for op in found.operations)
    assert any(op.summary.startswith(f"remove {paths.experiment(fleet)}") for op in found.operations)
    assert put_back(fleet, whole(fleet)).operations == ()


def problems(fleet: Fleet, facts: dict[int, Facts]) -> list[str]:
    return status.problems(status.document(fleet, facts, {}, peers.of(fleet, {}, fleet.machines)))


def test_status_says_first_that_a_bench_ab_was_left_half_way_and_what_to_type(fleet: Fleet) -> None:
    found = status.document(fleet, half_way(fleet), {}, peers.of(fleet, {}, fleet.machines))
    assert found["verdict"] == "warn"
    assert found["experiment"]["machines"] == [69, 67]
    first = problems(fleet, half_way(fleet))[0]
    assert first == (
        "bench ab (mtp 3, 4, 5) of ops@laptop, 2026-08-29T12:00:00Z, on 69, 67, was left half way: "
        "fleetctl bench ab --restore puts release 7 back"
    )
    assert status.document(fleet, whole(fleet), {}, ())["experiment"] is None


def test_while_it_runs_status_does_not_call_it_left(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = half_way(fleet)
    process = Process("boot", 1, "1")
    holder = Holder(MARK.run + "f" * 24, "ops", "laptop", process, "bench ab", MARK.when, 60.0, 1.0)
    facts[69] = replace(facts[69], lock=LockState("held", holder))
    assert "is under way" in problems(fleet, facts)[0]
    monkeypatch.setattr("fleetctl.plan.owner.is_gone", lambda _: True)
    assert "was left half way" in problems(fleet, facts)[0], "a lock that nobody holds any more"


def test_a_mark_that_was_damaged_is_a_mark_too(fleet: Fleet) -> None:
    found = experiment.left({67: {}, 69: None})
    assert found is not None
    assert "was left half way" in experiment.words(found)


def test_arms_differ_in_nothing_but_their_tokens(fleet: Fleet) -> None:
    which = fleet.instances[0]
    plain = docker.run_arguments(fleet, which, TOPOLOGY)
    five = docker.run_arguments(fleet.with_overrides(Overrides(tokens=5)), which, TOPOLOGY)
    other = [(a, b) for a, b in zip(plain, five, strict=True) if a != b]
    assert len(other) == 2, "the label and --speculative-config"


def test_operations_name_their_instance(fleet: Fleet) -> None:
    found: list[Operation] = [op for op in a_round(fleet).operations if op.step == "gate"]
    assert {op.target for op in found} == {one.id for one in fleet.instances}
