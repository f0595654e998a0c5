"""The line of counts that a plan ends with says what the operations come to."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.balancer import peers
from fleetctl.cli.output import plan_document, plan_text
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Container, Unit
from fleetctl.plan import actions, tally
from fleetctl.plan.operation import Plan, sequence

from .test_expand import context, empty, plan, whole


def test_an_empty_fleet_is_copied_to_and_started(fleet: Fleet) -> None:
    found = plan("rollout", context(fleet, empty(fleet), tuple(fleet.machines)))
    assert tally.counts(found) | {"write": 0} == {
        "machines": 4,
        "copy": 6,
        "start": 16,
        "restart": 0,
        "stop": 0,
        "write": 0,
        "remove": 0,
        "apply": 1,
    }
    said = tally.words(found)
    assert said.startswith("in all: 4 machines, 6 copies to make, 16 instances to start, ")
    assert "restart" not in said
    assert said.endswith("files to write, 1 balancer to configure")
    assert plan_text(found, verbose=False).splitlines()[-1] == said
    assert plan_document(found)["counts"] == tally.counts(found)


def test_what_is_stopped_to_be_started_is_restarted(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    found = actions.restart(context(fleet, whole(fleet), tuple(fleet.machines), peers=table), fleet.on(67)[:1])
    assert tally.words(found) == "in all: 2 machines, 1 instance to restart"


def test_a_stop_is_counted_with_its_mark(fleet: Fleet) -> None:
    found = actions.stop(context(fleet, whole(fleet), (67,)), fleet.on(67)[:2], who="ops", when="now", reason="")
    assert tally.words(found) == "in all: 1 machine, 2 instances to stop, 2 files to write"


def test_old_services_are_counted_as_removed(fleet: Fleet) -> None:
    facts = empty(fleet)
    name = "minimax-h3-a"
    old = Unit("active", "running", "enabled", "success", 0, f"/etc/systemd/system/{name}.service")
    box = Container("minimax-h3-b", "a" * 64, "sha256:x", "running", {}, ())
    facts[67] = replace(facts[67], units={**facts[67].units, name: old}, containers=(box,))
    found = plan("add-machine", context(fleet, facts, (67,)))
    assert tally.counts(found)["remove"] == sum(op.step == "clean" for op in found.operations) > 0


def test_nothing_to_do_has_no_counts(fleet: Fleet) -> None:
    assert plan_text(Plan("rollout", fleet.name, sequence("rollout")), verbose=False).count("\n") == 0


def test_how_long_it_is_likely_to_take_is_said_from_past_starts(fleet: Fleet) -> None:
    first = empty(fleet)
    assert not any("likely" in note for note in plan("rollout", context(fleet, first, (69,))).notes), "nothing known"
    known = {machine: replace(facts, starts=(30.0, 40.0, 200.0)) for machine, facts in first.items()}
    found = plan("rollout", context(fleet, known, (69,)))
    said = "2 starts one after the other: likely some 1 min 20 s (the last 3 here took 40 s, median)"
    assert said in found.notes, "one, then all others at once"
    table = peers.of(fleet, {}, fleet.machines)
    serving = {machine: replace(facts, starts=(90.0,)) for machine, facts in whole(fleet).items()}
    found = actions.restart(context(fleet, serving, (67,), peers=table), fleet.on(67)[:3])
    assert "3 starts one after the other: likely some 4 min 30 s (the last 1 here took 90 s, median)" in found.notes
