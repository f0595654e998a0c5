"""Taking machines out, and what the inventory no longer lists. Plans only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fleetctl.balancer import peers
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.commands import paths
from fleetctl.commands.probe import MARK
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe import observe
from fleetctl.observe.facts import BalancerState, Container, Facts, ModelState
from fleetctl.observe.facts import PeerState as Seen
from fleetctl.plan import expand, playbook, removal
from fleetctl.plan.context import Context, set_state
from fleetctl.plan.operation import EditPeers, Operation, Plan
from fleetctl.plan.release import Release
from fleetctl.plan.steps import STEPS

from ..conftest import IMAGE
from .test_expand import context, whole


def table(fleet: Fleet, **states: PeerState) -> tuple[Peer, ...]:
    return peers.of(fleet, {name.strip("_").replace("_", "/"): state for name, state in states.items()}, fleet.machines)


def removing(fleet: Fleet, facts: Mapping[int, Facts], *machines: int, purge: bool = False, **more: object) -> Context:
    given = {"peers": table(fleet), **more}
    return context(fleet, dict(facts), machines, purge=purge, **given)


def plan(given: Context, name: str = "remove-machine") -> Plan:
    return expand.expand(playbook.load(name, set(STEPS)), given, name)


def words(found: Plan, step: str) -> list[str]:
    return [f"{op.machine} {op.target} {op.summary}" for op in found.operations if op.step == step]


def edited(op: Operation, before: tuple[Peer, ...]) -> tuple[Peer, ...]:
    assert isinstance(op.action, EditPeers)
    return op.action.edit(before)


def without(fleet: Fleet, machine: int) -> Fleet:
    """The inventory after the person has deleted a machine from it."""
    kept = tuple(m for m in fleet.inventory.machines if m.id != machine)
    return replace(fleet, inventory=fleet.inventory.model_copy(update={"machines": kept}))


def fewer(fleet: Fleet, count: int) -> Fleet:
    settings = fleet.inventory.instances.model_copy(update={"per_machine": count})
    return replace(fleet, inventory=fleet.inventory.model_copy(update={"instances": settings}))


def inflight(fleet: Fleet, facts: dict[int, Facts], each: int | None, **health: str) -> dict[int, Facts]:
    live = tuple(Seen(p.id, p.address, "up", each, health.get("m" + p.id.split("/")[0])) for p in table(fleet))
    state = facts[69].balancer
    assert state is not None
    return {**facts, 69: replace(facts[69], balancer=BalancerState(state.version, state.config, live))}


def test_a_machine_is_drained_before_it_leaves_and_leaves_before_it_is_stopped(fleet: Fleet) -> None:
    found = plan(removing(fleet, owned(fleet, whole(fleet)), 67))
    steps = list(dict.fromkeys(op.step for op in found.operations))
    assert steps == ["drain", "leave", "dismiss", "forget"]
    assert words(found, "drain")[0] == "69 67 drain 67/0, 67/1, 67/2, 67/3: no new requests"
    assert words(found, "drain")[1:] == [f"69 67/{i} wait for requests in flight" for i in range(4)]
    assert words(found, "leave") == ["69 67 leave: 16 -> 12 backends, 75% of sessions move"]
    assert {op.machine for op in found.operations if op.step in ("dismiss", "forget")} == {67}


def test_everybody_else_keeps_place_and_state(fleet: Fleet) -> None:
    before = table(fleet, _68_1=PeerState.HELD)
    found = plan(removing(fleet, whole(fleet), 67, peers=before))
    drain = next(op for op in found.operations if op.step == "drain")
    after = edited(drain, before)
    assert {p.id: p.state for p in after if p.state is PeerState.DRAIN} == {
        f"67/{i}": PeerState.DRAIN for i in range(4)
    }
    leave = next(op for op in found.operations if op.step == "leave")
    assert edited(leave, after) == tuple(p for p in before if not p.id.startswith("67/"))


def owned(fleet: Fleet, facts: dict[int, Facts]) -> dict[int, Facts]:
    """As a probe sees them: units by their header, containers by their label."""
    found = {}
    for machine, seen in facts.items():
        ids = {i.name: i.id for i in fleet.on(machine)}
        containers = tuple(
            replace(c, labels={**c.labels, "fleetctl.instance": ids[c.name]}) for c in seen.containers or ()
        )
        found[machine] = replace(seen, own_units=ids, containers=containers)
    return found


def test_units_containers_and_key_go_and_image_and_model_stay(fleet: Fleet) -> None:
    found = plan(removing(fleet, owned(fleet, whole(fleet)), 67))
    lines = [line for line in words(found, "dismiss") if "watchdog" not in line]
    assert lines[0] == "67 67/0 stop, disable and remove qwen38-tp2-0.service"
    assert lines[4] == "67 67/0 remove container qwen38-tp2-0"
    assert words(found, "forget") == ["67 67 remove the key's file and the fleet's releases"]
    assert words(found, "purge") == []
    assert any("keeps" in note and "--purge" in note for note in found.notes)


def test_a_release_that_was_tried_on_it_alone_goes_with_it(fleet: Fleet) -> None:
    """Else the copy of the balancer's machine would bring it to the next one that joins."""
    tried = Release(4, Overrides(tokens=8), "", "", "rollout --mtp 8 --machines 67", "running")
    back = Release(5, Overrides(tokens=5), "", "", "rollback 3", "good", back_to=3)
    facts = owned(fleet, whole(fleet))
    found = plan(removing(fleet, facts, 67, current=tried, release=back))
    written = [line for line in words(found, "leave") if "write" in line]
    assert [line.split()[-1].rpartition("/")[2] for line in written] == ["00005.json", "release.json"]
    assert any(
        "release 4 (mtp 8) is on 67 only and goes with it: in force is then 5, as 3 was (mtp 5)" in note
        for note in found.notes
    )
    later = replace(back, when="2026-08-29T12:00:01Z")
    assert plan(removing(fleet, facts, 67, current=tried, release=later)).id == found.id
    gone = {machine: seen for machine, seen in facts.items() if machine != 67}
    assert words(plan(removing(fleet, gone, 67, current=tried, release=back)), "leave")[1:] == written, (
        "also a dead one"
    )
    assert len(words(plan(removing(fleet, facts, 67)), "leave")) == 1


def test_a_foreign_container_stays(fleet: Fleet) -> None:
    facts = owned(fleet, whole(fleet))
    foreign = Container("somebody", "f" * 64, "x", "running", {"fleetctl.fleet": "other"}, ())
    facts[67] = replace(facts[67], containers=(*(facts[67].containers or ()), foreign))
    assert not any("somebody" in line for line in words(plan(removing(fleet, facts, 67)), "dismiss"))


def test_a_machine_that_is_removed_needs_nothing(fleet: Fleet) -> None:
    facts = whole(fleet)
    facts[67] = replace(facts[67], own_units={}, units={}, containers=(), files={}, health={})
    rest = tuple(p for p in table(fleet) if not p.id.startswith("67/"))
    assert plan(removing(fleet, facts, 67, peers=rest)).operations == ()
    facts[67] = replace(facts[67], model=None, image=None)
    assert plan(removing(fleet, facts, 67, peers=rest, purge=True)).operations == ()


def test_purge_takes_what_fleetctl_brought_and_says_what_it_did_not(fleet: Fleet) -> None:
    facts = owned(fleet, whole(fleet))
    brought = ModelState(True, "l", "m", "l", 5, versions=("abc",), version="abc")
    facts[67] = replace(facts[67], brought=(IMAGE.id,), model=brought)
    found = plan(removing(fleet, facts, 67, purge=True))
    assert [line.split()[2:5] for line in words(found, "purge")] == [
        ["remove", "image", "aaaaaaaaaaaa,"],
        ["remove", "the", "model"],
        ["remove", "compile", "caches,"],
    ]
    last = [op.step for op in found.operations]
    assert last.index("forget") > last.index("purge")
    half = ModelState(False, None, None, None, None, arrived=5)
    found = plan(removing(fleet, {**facts, 67: replace(facts[67], model=half)}, 67, purge=True))
    assert any(line.endswith("remove the model /data/models/Qwen3.8-27B-W8A8") for line in words(found, "purge"))
    facts[67] = replace(facts[67], brought=(), model=replace(brought, versions=(), version=None))
    found = plan(removing(fleet, facts, 67, purge=True))
    assert len(words(found, "purge")) == 1
    assert any("which fleetctl did not bring: docker rmi" in note for note in found.notes)
    assert any("the model /data/models/" in note and "did not bring" in note for note in found.notes)


def test_a_dead_machine_leaves_the_table_and_the_rest_is_tried(fleet: Fleet) -> None:
    facts = inflight(fleet, whole(fleet), 0, m67="down")
    del facts[67]
    found = plan(removing(fleet, facts, 67))
    assert words(found, "drain") == ["69 67 drain 67/0, 67/1, 67/2, 67/3: no new requests"]
    assert len(words(found, "leave")) == 1
    # It fails as unreachable while the machine is dead, which is what makes exit code 4; nobody has to know its units.
    assert words(found, "dismiss") == [f"67 67 stop, disable and remove the units and containers of fleet {fleet.name}"]
    assert any("67 does not answer" in note and "fleetctl remove-machine 67" in note for note in found.notes)


def test_one_that_we_cannot_reach_and_the_balancer_can_is_waited_for(fleet: Fleet) -> None:
    facts = inflight(fleet, whole(fleet), 1, m67="ok")
    del facts[67]
    assert len(words(plan(removing(fleet, facts, 67)), "drain")) == 5


def test_keys_of_copies_that_were_cut_short_are_revoked(fleet: Fleet) -> None:
    facts = owned(fleet, whole(fleet))
    facts[69] = replace(facts[69], transfer_tags=("qwen38-67-model", "qwen38-66-model"))
    facts[67] = replace(facts[67], transfer_tags=("qwen38-66-image",))
    lines = words(plan(removing(fleet, facts, 67)), "forget")
    assert lines[:2] == [
        "69 69 revoke the key of a transfer (qwen38-67-model)",
        "67 67 revoke the key of a transfer (qwen38-66-image)",
    ]


def test_the_watchdog_goes_before_the_instances(fleet: Fleet) -> None:
    facts = owned(fleet, whole(fleet))
    files = {str(path): "0" * 64 for path in paths.watchdog_files(fleet)}
    facts[67] = replace(facts[67], files={**facts[67].files, **files})
    assert "watchdog" in words(plan(removing(fleet, facts, 67)), "dismiss")[0]


def test_the_balancers_machine_and_the_source_are_refused_with_a_way(fleet: Fleet) -> None:
    refused = removal.refusal(fleet, (67, 69))
    assert refused is not None
    assert refused[0] == "69 has the balancer, which everybody's requests go through"
    elsewhere = fleet.inventory.balancer.model_copy(update={"machine": 68})
    moved = replace(fleet, inventory=fleet.inventory.model_copy(update={"balancer": elsewhere}))
    refused = removal.refusal(moved, (69,))
    assert refused is not None
    assert "69 is the source" in refused[0]
    assert "as source in the inventory" in refused[1]
    assert removal.refusal(fleet, (67, 66)) is None


@pytest.mark.parametrize(
    ("each", "health", "said"),
    [
        (24, {}, None),  # 16 x 24 = 384 = 12 x 32
        (25, {}, "400 requests are in flight, and the 12 instances that stay compute 384 at once"),
        (17, {"m66": "down"}, "272 requests are in flight, and the 8 instances that stay compute 256 at once"),
        (None, {}, None),
        (0, {"m66": "down", "m68": "down", "m69": "ejected"}, "no backend would be left"),
    ],
)
def test_it_is_refused_when_the_rest_could_not_take_the_load(
    fleet: Fleet, each: int | None, health: dict[str, str], said: str | None
) -> None:
    fleet = fleet.with_overrides(Overrides(engine=(("max-num-seqs", 32),)))
    facts = inflight(fleet, whole(fleet), each, **health)
    found = removal.overload(removing(fleet, facts, 67))
    assert found is None if said is None else (found or "").startswith(said)


def test_what_has_left_is_no_load(fleet: Fleet) -> None:
    facts = inflight(fleet, whole(fleet), 100)
    rest = tuple(p for p in table(fleet) if not p.id.startswith("67/"))
    assert removal.overload(removing(fleet, facts, 67, peers=rest)) is None


def test_an_unknown_load_is_said(fleet: Fleet) -> None:
    found = plan(removing(fleet, inflight(fleet, whole(fleet), None), 67))
    assert any("does not say how many requests are in flight" in note for note in found.notes)


def test_a_machine_deleted_from_the_inventory_is_drained_out_by_a_rollout(fleet: Fleet) -> None:
    smaller, facts = without(fleet, 67), owned(fleet, whole(fleet))
    del facts[67]
    given = context(smaller, facts, tuple(smaller.machines), peers=table(fleet))
    found = plan(given, "rollout")
    assert {op.step for op in found.operations} >= {"orphans"}
    assert words(found, "orphans") == [
        "69 69 drain 67/0, 67/1, 67/2, 67/3: no new requests",
        *(f"69 67/{i} wait for requests in flight" for i in range(4)),
        "69 69 leave: 16 -> 12 backends, 75% of sessions move",
    ]


def test_a_rollout_of_a_fleet_without_orphans_changes_nothing(fleet: Fleet) -> None:
    given = context(fleet, owned(fleet, whole(fleet)), tuple(fleet.machines), peers=table(fleet))
    assert plan(given, "rollout").operations == ()


def test_fewer_instances_a_machine_leave_and_are_removed_there(fleet: Fleet) -> None:
    smaller, facts = fewer(fleet, 3), owned(fleet, whole(fleet))
    found = plan(context(smaller, facts, (67,), peers=table(fleet)), "rollout")
    assert words(found, "orphans") == [
        "69 67 drain 67/3: no new requests",
        "69 67/3 wait for requests in flight",
        next(line for line in words(found, "orphans") if "leave: 16 -> 15" in line),
        "67 67/3 stop, disable and remove qwen38-tp2-3.service",
        "67 67/3 remove container qwen38-tp2-3",
    ]


def test_nobody_moves_a_stranger_by_the_way(fleet: Fleet) -> None:
    smaller = without(fleet, 68)
    after = set_state(smaller, smaller.on(67)[:1], PeerState.HELD, by_hand=True)(table(fleet))
    assert [p.id for p in after] == [p.id for p in table(fleet)]
    assert [p.id for p in after if p.state is not PeerState.UP] == ["67/0"]


def test_a_stranger_whose_address_is_taken_over_is_gone(fleet: Fleet) -> None:
    which = fleet.on(67)[0]
    before = (Peer("9/0", which.address), *(p for p in table(fleet) if p.id != which.id))
    after = set_state(fleet, (which,), PeerState.UP)(before)
    assert [p.id for p in after] == [p.id for p in table(fleet)]


def test_a_stranger_with_any_name_can_leave(fleet: Fleet) -> None:
    odd = (*table(fleet), Peer("by-hand", "10.9.9.9:1"))
    found = plan(context(fleet, owned(fleet, whole(fleet)), tuple(fleet.machines), peers=odd), "rollout")
    assert "leave: 17 -> 16" in words(found, "orphans")[-1]


def test_units_are_known_by_their_header() -> None:
    text = f"{MARK} own-units\nqwen38-tp2-3.service:# fleet=qwen38 instance=67/3 spec=abc text=def\n"
    assert observe.parse(67, text).own_units == {"qwen38-tp2-3": "67/3"}
