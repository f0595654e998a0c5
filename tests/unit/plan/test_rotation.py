"""Who takes requests: what a person drained stays drained, weights are the inventory's, plans say what moves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fleetctl.balancer import peers
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import BalancerState, Facts, Stopped
from fleetctl.observe.facts import PeerState as Seen
from fleetctl.plan import actions, gate, status
from fleetctl.plan.context import Context, set_state
from fleetctl.plan.operation import EditPeers, Plan, Verdict

from .test_expand import context, plan, whole


def table(fleet: Fleet, **states: PeerState) -> tuple[Peer, ...]:
    return peers.of(fleet, {name.replace("_", "/").strip("/"): state for name, state in states.items()}, fleet.machines)


def over(fleet: Fleet, before: tuple[Peer, ...], facts: dict[int, Facts] | None = None) -> Context:
    return context(fleet, facts or whole(fleet), tuple(fleet.machines), peers=before)


def after(found: Plan, before: tuple[Peer, ...]) -> dict[str, PeerState]:
    """The states of the table once every edit of the plan is done."""
    for operation in found.operations:
        if isinstance(operation.action, EditPeers):
            before = operation.action.edit(before)
    return {peer.id: peer.state for peer in before}


def weighted(fleet: Fleet, weights: dict[str, int]) -> Fleet:
    balancer = fleet.inventory.balancer.model_copy(update={"weights": weights})
    return replace(fleet, inventory=fleet.inventory.model_copy(update={"balancer": balancer}))


def test_drain_holds_and_only_undrain_ends_it(fleet: Fleet) -> None:
    up, held = table(fleet), table(fleet, _67_2=PeerState.HELD)
    instance = [fleet.on(67)[2]]
    assert after(actions.rotation(over(fleet, up), instance, drain=True), up)["67/2"] is PeerState.HELD
    assert after(actions.rotation(over(fleet, held), instance, drain=False), held)["67/2"] is PeerState.UP


def test_a_rollout_with_nothing_to_do_leaves_a_held_instance_drained_and_says_so(fleet: Fleet) -> None:
    held = table(fleet, _67_2=PeerState.HELD)
    found = plan("rollout", over(fleet, held))
    assert found.operations == ()
    assert any(note.startswith("67/2 stays drained") for note in found.notes)


def test_a_rollout_changes_a_held_instance_and_leaves_it_drained(fleet: Fleet) -> None:
    held = table(fleet, _67_2=PeerState.HELD)
    five = fleet.with_overrides(Overrides(tokens=5))
    found = plan("rollout", over(five, held, whole(fleet)))
    mine = [op.summary for op in found.operations if op.target == "67/2"]
    assert mine[0] == "wait for requests in flight"
    assert any(summary.startswith("restart") for summary in mine)
    assert not any("back in rotation" in summary for summary in mine)
    assert after(found, held)["67/2"] is PeerState.HELD
    assert set(after(found, held).values()) == {PeerState.UP, PeerState.HELD}


def test_what_is_drained_by_hand_while_a_rollout_runs_is_not_taken_back_by_it(fleet: Fleet) -> None:
    five = fleet.with_overrides(Overrides(tokens=5))
    found = plan("rollout", over(five, table(fleet), whole(fleet)))
    assert after(found, table(fleet, _66_1=PeerState.HELD))["66/1"] is PeerState.HELD
    judge = gate.in_use(fleet.on(66)[1:2])
    assert judge(json.dumps({"peers": [{"id": "66/1", "state": "held", "health": "ok"}]})).verdict is Verdict.PASS
    assert judge(json.dumps({"peers": [{"id": "66/1", "state": "drain", "health": "ok"}]})).verdict is Verdict.PENDING


@pytest.mark.parametrize("now", [False, True])
def test_restart_of_a_held_instance_leaves_it_drained_and_says_so(fleet: Fleet, now: bool) -> None:
    held = table(fleet, _67_2=PeerState.HELD)
    found = actions.restart(over(fleet, held), [fleet.on(67)[2]], now=now)
    assert after(found, held)["67/2"] is PeerState.HELD
    assert any("stays drained" in note for note in found.notes)


def test_stop_puts_a_held_instance_off_and_start_of_it_brings_it_back(fleet: Fleet) -> None:
    held = table(fleet, _67_2=PeerState.HELD)
    stopped = after(actions.stop(over(fleet, held), [fleet.on(67)[2]], who="me", when="", reason=""), held)
    assert stopped["67/2"] is PeerState.OFF


def test_a_drain_that_was_cut_short_is_waited_for_again(fleet: Fleet) -> None:
    held = table(fleet, _67_2=PeerState.HELD)
    facts = whole(fleet)
    live = tuple(Seen(p.id, p.address, p.state.value, 2 if p.id == "67/2" else 0) for p in held)
    facts[69] = replace(facts[69], balancer=BalancerState("", "", live))
    found = actions.rotation(over(fleet, held, facts), [fleet.on(67)[2]], drain=True)
    assert [op.summary for op in found.operations] == ["wait for requests in flight"]
    assert actions.rotation(over(fleet, held), [fleet.on(67)[2]], drain=True).operations == ()


def test_a_machine_is_drained_as_a_whole_before_anything_is_waited_for(fleet: Fleet) -> None:
    found = actions.rotation(over(fleet, table(fleet)), fleet.on(67), drain=True)
    summaries = [op.summary for op in found.operations]
    assert summaries == ["drain: no new requests"] * 4 + ["wait for requests in flight"] * 4
    assert "26% of sessions move" in found.notes, "a quarter, by the sample"


def test_draining_everything_says_that_nothing_is_left(fleet: Fleet) -> None:
    found = actions.rotation(over(fleet, table(fleet)), fleet.instances, drain=True)
    assert any("503" in note for note in found.notes)


def test_undrain_of_a_machine_passes_over_what_was_stopped_on_purpose(fleet: Fleet) -> None:
    facts = whole(fleet)
    facts[67] = replace(facts[67], stopped={"qwen38-tp2-0": Stopped("me", "", "")})
    before = table(fleet, _67_0=PeerState.OFF, _67_1=PeerState.HELD)
    found = actions.rotation(over(fleet, before, facts), fleet.on(67), drain=False)
    assert after(found, before)["67/0"] is PeerState.OFF
    assert after(found, before)["67/1"] is PeerState.UP
    assert any("67/0 stays stopped" in note for note in found.notes)
    with pytest.raises(UsageError, match="67/0 was stopped on purpose"):
        actions.rotation(over(fleet, before, facts), fleet.on(67)[:1], drain=False)


def test_what_has_not_joined_is_passed_over_unless_it_is_all_that_was_named(fleet: Fleet) -> None:
    before = peers.of(fleet, {}, [69])
    found = actions.rotation(over(fleet, before), fleet.instances, drain=True)
    assert len([op for op in found.operations if op.summary.startswith("drain")]) == 4
    with pytest.raises(UsageError, match="67/0 has not joined"):
        actions.rotation(over(fleet, before), fleet.on(67), drain=True)


def test_a_join_carries_the_weights_of_the_inventory(fleet: Fleet) -> None:
    heavy = weighted(fleet, {"67": 2, "66/1": 3})
    found = plan("rollout", over(heavy, table(fleet), whole(fleet)))
    joins = [op for op in found.operations if op.step == "join"]
    assert joins, "a changed weight is a change of the table"
    joined = table(fleet)
    for operation in joins:
        joined = operation.action.edit(joined)  # type: ignore[union-attr]
    assert {p.id: p.weight for p in joined if p.weight != 1} == {**{i.id: 2 for i in fleet.on(67)}, "66/1": 3}


def test_a_restart_keeps_the_weight(fleet: Fleet) -> None:
    heavy = weighted(fleet, {"67": 2})
    drained = set_state(heavy, (heavy.on(67)[1],), PeerState.DRAIN)(table(heavy))
    assert {p.weight for p in drained if p.id.startswith("67/")} == {2}


def test_status_says_who_drained_and_what_the_balancer_finds(fleet: Fleet) -> None:
    facts = whole(fleet)
    before = table(fleet, _67_2=PeerState.HELD, _67_1=PeerState.DRAIN)
    health = {"66/0": "suspect"}
    live = tuple(Seen(p.id, p.address, p.state.value, 0, health.get(p.id, "ok")) for p in before)
    facts[69] = replace(facts[69], balancer=BalancerState("", "", live))
    document = status.document(fleet, facts, {}, before)
    words = "\n".join(status.problems(document))
    assert "67/2 is drained, as somebody asked: fleetctl undrain 67/2" in words
    assert "67/1 is drained, by a command that was cut short: fleetctl undrain 67/1" in words
    assert "66/0 serves, and the balancer finds it suspect" in words
    unproved = {**document, "release": {"number": 2, "outcome": "running", "command": "rollout --mtp 5"}}
    words = "\n".join(status.problems(unproved))
    assert "undrain 67/1" not in words, "it may be the canary that failed"
    assert "67/1 is drained, by a rollout that did not end well" in words
    assert "67/2 is drained, as somebody asked: fleetctl undrain 67/2" in words
    assert document["balancer"]["up"] == 13
