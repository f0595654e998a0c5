"""Plans: what would run, from desired and observed state. Nothing here touches a machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from fleetctl.balancer import config, peers
from fleetctl.balancer.config import FLAVOURS
from fleetctl.commands import paths, units
from fleetctl.errors import CommandError, UsageError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.fleet.schema import MachineOverride
from fleetctl.observe.facts import BalancerState, Container, Facts, Health, Listener, PeerState, Stopped, Unit
from fleetctl.observe.npu_smi import NpuProcess
from fleetctl.plan import actions, desired, drift, expand, playbook
from fleetctl.plan.context import Context
from fleetctl.plan.desired import sha256
from fleetctl.plan.operation import Group, Plan
from fleetctl.plan.release import Release
from fleetctl.plan.steps import STEPS

from ..conftest import KEY, bare, npus, serving

FLAVOUR = next(iter(FLAVOURS))


def context(fleet: Fleet, facts: dict[int, Facts], machines: tuple[int, ...], **more: object) -> Context:
    given = {
        "fleet": fleet,
        "facts": facts,
        "machines": machines,
        "key_hash": hashlib.sha256(KEY.encode()).hexdigest(),
        "stamp": "20260829T120000Z",
    }
    return Context(**{**given, **more})  # type: ignore[arg-type]


def empty(fleet: Fleet) -> dict[int, Facts]:
    return {machine: bare(machine, flavour=FLAVOUR) for machine in fleet.machines}


def whole(fleet: Fleet) -> dict[int, Facts]:
    """Every machine as desired, the balancer running with all 16."""
    facts = {machine: serving(fleet, machine) for machine in fleet.machines}
    table = peers.of(fleet, {}, fleet.machines)
    files = config.render(fleet, FLAVOURS[FLAVOUR])
    unit = units.balancer(fleet, FLAVOURS[FLAVOUR].binary, config.open_files(fleet))
    folder = paths.balancer(fleet)
    hashes = {str(folder / name): sha256(text) for name, text in files.items()}
    hashes[str(paths.unit(fleet.inventory.balancer.unit))] = sha256(unit)
    hashes[str(paths.logrotate(fleet))] = sha256(config.logrotate(fleet))
    hashes |= {path: sha256(text) for path, text in units.alone(fleet).items()}
    hashes[str(paths.applied(fleet))] = sha256(desired.applied(folder, files))
    live = tuple(PeerState(p.id, p.address, "up", 0) for p in table)
    state = BalancerState(peers.version(peers.render(table)), config.config_hash(files), live)
    active = Unit("active", "running", "enabled", "success", 0, "")
    facts[69] = replace(
        facts[69],
        flavour=FLAVOUR,
        files={**facts[69].files, **hashes},
        units={**facts[69].units, fleet.inventory.balancer.unit: active},
        peers=peers.render(table),
        balancer=state,
    )
    return facts


def plan(name: str, ctx: Context) -> Plan:
    return expand.expand(playbook.load(name, set(STEPS)), ctx, name)


def steps_on(found: Plan, machine: int) -> list[str]:
    return list(dict.fromkeys(op.step for op in found.operations if op.machine == machine))


def test_an_empty_machine_gets_everything_in_order(fleet: Fleet) -> None:
    found = plan("add-machine", context(fleet, empty(fleet), (67,)))
    assert steps_on(found, 67) == ["key", "image", "model", "units", "start", "gate"]
    on_source = [op for op in found.operations if op.machine == 69]
    assert [op.step for op in on_source][-2:] == ["join", "verify"]


def test_a_fleet_that_is_as_desired_needs_nothing(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    found = plan("rollout", context(fleet, whole(fleet), tuple(fleet.machines), peers=table))
    assert found.operations == ()


def test_the_first_instance_starts_alone_and_the_rest_side_by_side(fleet: Fleet) -> None:
    found = plan("add-machine", context(fleet, empty(fleet), (67,)))
    groups = [g for g in walk(found.root) if g.name == "start the rest"]
    assert [child.name for child in groups[0].children] == ["67/1", "67/2", "67/3"]  # type: ignore[union-attr]
    assert groups[0].parallel


def walk(group: Group) -> list[Group]:
    return [group, *(g for child in group.children if isinstance(child, Group) for g in walk(child))]


def test_what_serves_is_drained_before_it_is_stopped(fleet: Fleet) -> None:
    five = fleet.with_overrides(Overrides(tokens=5))
    table = peers.of(fleet, {}, fleet.machines)
    facts = whole(fleet)
    found = plan("rollout", context(five, facts, tuple(five.machines), peers=table))
    ops = [op for op in found.operations if op.target == "67/2"]
    assert [op.step for op in ops] == ["roll"] * 5 + ["gate", "roll", "roll"]
    assert ops[0].summary.startswith("drain")
    assert "stop qwen38-tp2-2.service (mtp 4 -> 5)" in ops[2].summary
    assert ops[-2].summary == "back in rotation"
    assert ops[-1].summary == "wait until the balancer sends to it"


def test_at_most_max_unavailable_are_changed_at_once(fleet: Fleet) -> None:
    five = fleet.with_overrides(Overrides(tokens=5))
    table = peers.of(fleet, {}, fleet.machines)
    found = plan("rollout", context(five, whole(fleet), tuple(five.machines), peers=table))
    batches = [g for g in walk(found.root) if g.name == "batch"]
    assert len(batches) == 4
    assert [len(batch.children) for batch in batches] == [3, 4, 4, 4], "the canary went before"


def test_an_instance_stopped_on_purpose_stays_stopped(fleet: Fleet) -> None:
    facts = whole(fleet)
    note = Stopped("ops@desk", "2026-08-29T12:00:00Z", "bad fan")
    facts[67] = replace(facts[67], stopped={"qwen38-tp2-0": note})
    table = peers.of(fleet, {"67/0": peers.PeerState.OFF}, fleet.machines)
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table))
    assert found.operations == ()
    assert "67/0 stays stopped" in found.notes[0]


def test_a_unit_changed_by_hand_is_put_right(fleet: Fleet) -> None:
    facts = whole(fleet)
    files = {**facts[68].files, str(paths.unit("qwen38-tp2-1")): "0" * 64}
    facts[68] = replace(facts[68], files=files)
    table = peers.of(fleet, {}, fleet.machines)
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table))
    assert {op.target for op in found.operations if op.step == "roll"} == {"68/1"}


def test_what_the_balancer_sends_to_is_drained_though_it_did_not_answer_our_one_look(fleet: Fleet) -> None:
    """A server that is busy may take longer than our patience for /health; its users would be cut off."""
    facts = whole(fleet)
    facts[67] = replace(facts[67], health={**facts[67].health, 2: Health(None, None)})
    table = peers.of(fleet, {}, fleet.machines)
    live = facts[69].balancer
    assert live is not None
    seen = {"67/2": ("ok", 9)}
    rows = tuple(
        replace(p, health=seen.get(p.id, ("ok", 0))[0], inflight=seen.get(p.id, ("ok", 0))[1]) for p in live.peers
    )
    facts[69] = replace(facts[69], balancer=replace(live, peers=rows))
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table))
    summaries = [op.summary for op in found.operations if op.target == "67/2"]
    assert summaries.index("wait for requests in flight") < next(
        n for n, words in enumerate(summaries) if words.startswith("stop qwen38-tp2-2.service")
    )
    down = tuple(replace(row, health="down") if row.id == "67/2" else row for row in rows)
    facts[69] = replace(facts[69], balancer=replace(live, peers=down))
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table))
    assert {op.step for op in found.operations if op.target == "67/2"} == {"start", "gate"}, "nobody sends to it"


def test_one_that_loads_is_gated_though_the_balancer_has_not_looked_yet(fleet: Fleet) -> None:
    facts = whole(fleet)
    young = tuple(replace(c, created=1000) for c in facts[67].containers or ())
    facts[67] = replace(facts[67], containers=young, now=1100, health={})
    live = facts[69].balancer
    assert live is not None
    facts[69] = replace(facts[69], balancer=replace(live, peers=tuple(replace(p, health="ok") for p in live.peers)))
    table = peers.of(fleet, {f"67/{n}": peers.PeerState.DRAIN for n in range(4)}, fleet.machines)
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table))
    assert [op.step for op in found.operations if op.machine == 67] == ["gate"] * 4


def test_an_instance_that_serves_without_its_unit_file_is_changed_like_the_others(fleet: Fleet) -> None:
    """Somebody removed the file; the engine runs on. To write it and call the release good would be a lie."""
    five = fleet.with_overrides(Overrides(tokens=5))
    facts = whole(fleet)
    unit = str(paths.unit("qwen38-tp2-2"))
    without = {path: text for path, text in facts[67].files.items() if path != unit}
    texts = {path: text for path, text in facts[67].unit_texts.items() if path != unit}
    facts[67] = replace(facts[67], files=without, unit_texts=texts)
    table = peers.of(fleet, {}, fleet.machines)
    found = plan("rollout", context(five, facts, tuple(fleet.machines), peers=table))
    assert {op.target for op in found.operations if op.step == "roll"} == {i.id for i in fleet.instances}
    summaries = [op.summary for op in found.operations if op.target == "67/2"]
    assert summaries[0].startswith("drain")
    assert "stop qwen38-tp2-2.service (its unit file is gone)" in summaries
    assert drift.drift(fleet, fleet.on(67)[2], facts[67]) == "its unit file is gone"
    with pytest.raises(CommandError, match="its unit file is gone"):
        actions.restart(context(fleet, facts, (67,), peers=table), fleet.on(67)[2:3])


def test_joining_says_how_many_sessions_move(fleet: Fleet) -> None:
    facts = {**empty(fleet)}
    table = peers.of(fleet, {}, [69])
    found = plan("add-machine", context(fleet, facts, (68,), peers=table))
    join = next(op for op in found.operations if op.step == "join")
    assert join.summary == "join: 4 -> 8 backends, 50% of sessions move"


def test_the_printed_plan_is_the_list_that_runs(fleet: Fleet) -> None:
    found = plan("rollout", context(fleet, empty(fleet), tuple(fleet.machines)))
    assert len(found.operations) == len({id(op) for op in found.operations})
    assert found.id == plan("rollout", context(fleet, empty(fleet), tuple(fleet.machines))).id


def test_a_plan_is_another_one_when_the_inventory_was_edited_between_showing_and_doing_it(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)

    def found(flag: int, when: str = "2026-08-29T12:00:00Z", who: str = "me", stamp: str = "2026-08-29T120000Z") -> str:
        edited = fleet.inventory.model_copy(update={"engine": {**fleet.inventory.engine, "seed": flag}})
        new = Release(2, Overrides(), when, who, "rollout", "running")
        ctx = context(Fleet(edited, fleet.path), whole(fleet), tuple(fleet.machines), peers=table, release=new)
        return plan("rollout", replace(ctx, stamp=stamp)).id

    assert found(7) != found(8), "the same operations write other flags"
    assert found(7) == found(7, "2026-08-29T13:30:00Z", "you", "2026-08-29T133000Z"), (
        "who does it when is no difference"
    )


def test_a_release_of_some_machines_is_known_at_the_balancer_and_the_plan_says_where_it_is(fleet: Fleet) -> None:
    """Every command looks there: two of them for different machines must not give one number to two releases."""
    table = peers.of(fleet, {}, fleet.machines)
    five = fleet.with_overrides(Overrides(tokens=5))
    new = Release(2, five.overrides, "", "", "rollout --mtp 5 --machines 67", "running", left_out=(69, 68, 66))
    found = plan("rollout", context(five, whole(fleet), (67,), peers=table, release=new))
    recorded = [
        (op.machine, op.summary.rpartition("/")[2]) for op in found.operations if op.step in ("release", "record")
    ]
    assert [where for where in recorded if where[0] == 69] == [
        (69, "release.json"),
        (69, "00002.json"),
        (69, "release.json"),
    ]
    assert {machine for machine, _ in recorded} == {69, 67}
    said = "release 2 is then on 67, and not on 69,68,66: only the former can go back to it later"
    assert any(note.startswith(said) for note in found.notes)


def test_what_proved_good_stays_so_at_the_balancer_while_another_machine_joins(fleet: Fleet) -> None:
    """The join fails and the machine is taken out again: nothing is half rolled out then."""
    good = Release(5, Overrides(), "", "", "rollout", "good")
    facts = {m: replace(f, release=good.document) for m, f in whole(fleet).items()}
    facts[66] = replace(empty(fleet)[66])
    table = peers.of(fleet, {}, (69, 68, 67))
    joins = replace(good, outcome="running", command="add-machine 66")
    found = plan("add-machine", context(fleet, facts, (66,), peers=table, release=joins, current=good))
    assert {op.machine for op in found.operations if op.step == "release"} == {66}
    assert 69 in {op.machine for op in found.operations if op.step == "record"}


def test_a_release_that_is_on_some_machines_is_brought_to_the_rest_also_where_nothing_else_is_due(fleet: Fleet) -> None:
    some = Release(2, Overrides(), "", "", "rollout --machines 67", "good", left_out=(69, 68, 66))
    facts = {m: replace(f, release=some.document) for m, f in whole(fleet).items()}
    given = {"peers": peers.of(fleet, {}, fleet.machines), "current": some}
    assert not plan(
        "rollout", context(fleet, facts, (67,), release=replace(some, outcome="running"), **given)
    ).operations
    new = replace(some, outcome="running", left_out=())
    steps = {
        op.step for op in plan("rollout", context(fleet, facts, tuple(fleet.machines), release=new, **given)).operations
    }
    assert {"release", "record"} <= steps


def problems(fleet: Fleet, machine: int, **changed: object) -> str:
    facts = empty(fleet)
    facts[machine] = replace(facts[machine], **changed)  # type: ignore[arg-type]
    found = expand.problems(context(fleet, facts, (machine,)))
    return "\n".join(found.get(machine, []))


def test_a_ready_machine_has_no_problems(fleet: Fleet) -> None:
    assert problems(fleet, 67) == ""


def test_a_foreign_process_on_our_port_is_named_by_pid(fleet: Fleet) -> None:
    holder = Listener("0.0.0.0", 8001, 4711, "/usr/bin/python3", "unit jupyter.service")
    assert "port 8001 of 67/1 is held by /usr/bin/python3 (pid 4711, unit jupyter.service)" in problems(
        fleet, 67, listeners=(holder,)
    )


def test_a_container_that_is_listed_to_clean_may_hold_the_port(fleet: Fleet) -> None:
    old = Container("minimax-h3", "f" * 64, "sha256:x", "running", {}, (8000,))
    holder = Listener("0.0.0.0", 8000, 99, "/usr/bin/docker-proxy", "unit docker.service")
    assert problems(fleet, 67, listeners=(holder,), containers=(old,)) == ""
    assert "container other" in problems(fleet, 67, listeners=(holder,), containers=(replace(old, name="other"),))


def test_an_npu_held_by_somebody_else_is_named(fleet: Fleet) -> None:
    held = {3: (NpuProcess(77, "python3", 28000),)}
    words = problems(fleet, 67, npu=npus(held), npu_owners={77: "unit train.service"})
    assert "NPU 3 is held by unit train.service (pid 77)" in words


def dead_npu(fleet: Fleet, devices: tuple[int, ...]) -> tuple[Fleet, dict[int, Facts]]:
    """67 serves on NPUs 0 to 7, and is to use only these from now on."""
    machines = tuple(
        m.model_copy(update={"instances": MachineOverride(devices=devices)}) if m.id == 67 else m
        for m in fleet.inventory.machines
    )
    facts = whole(fleet)
    containers = tuple(
        replace(c, id=str(n) * 64, labels={**c.labels, "fleetctl.instance": f"67/{n}"})
        for n, c in enumerate(facts[67].containers or ())
    )
    held = {n: (NpuProcess(100 + n, "VLLM::Worker", 28000),) for n in range(8)}
    owners = {100 + n: f"container {containers[n // 2].id[:12]}" for n in range(8)}
    facts[67] = replace(facts[67], containers=containers, npu=npus(held), npu_owners=owners)
    return Fleet(fleet.inventory.model_copy(update={"machines": machines}), fleet.path), facts


def test_npus_that_another_instance_has_would_be_waited_for_in_vain(fleet: Fleet) -> None:
    """Nobody leaves them before the one that waits has got them: it is said before anything is drained."""
    fewer, facts = dead_npu(fleet, (0, 1, 3, 4, 5, 6))
    table = peers.of(fleet, {}, fleet.machines)
    found = expand.problems(context(fewer, facts, tuple(fleet.machines), peers=table))
    assert found[67] == [
        "67/1 is to have NPU 4, which 67/2 has, 67/2 NPU 6, which 67/3 has: first fleetctl stop 67/1 67/2, "
        "then fleetctl rollout --resume, then fleetctl start 67/1 67/2"
    ]
    mark = Stopped("me", "", "")
    facts[67] = replace(facts[67], stopped={fleet.on(67)[1].name: mark, fleet.on(67)[2].name: mark})
    assert expand.problems(context(fewer, facts, tuple(fleet.machines), peers=table)) == {}


def test_an_instance_whose_npus_are_nobody_elses_may_change_them(fleet: Fleet) -> None:
    fewer, facts = dead_npu(fleet, (0, 1, 2, 3, 4, 5))
    table = peers.of(fleet, {}, fleet.machines)
    assert expand.problems(context(fewer, facts, tuple(fleet.machines), peers=table)) == {}


def test_a_port_that_another_instance_has_is_said_before_anything_is_drained(fleet: Fleet) -> None:
    _, facts = dead_npu(fleet, tuple(range(8)))
    table = peers.of(fleet, {}, fleet.machines)
    settings = fleet.inventory.instances.model_copy(update={"port": 8002})
    moved = Fleet(fleet.inventory.model_copy(update={"instances": settings}), fleet.path)
    found = expand.problems(context(moved, {**whole(moved), 67: facts[67]}, tuple(fleet.machines), peers=table))
    assert found[67] == [
        "67/0 is to have port 8002, which 67/2 has, 67/1 port 8003, which 67/3 has: "
        "give instances.port a range that nobody has; from there it can change again"
    ]


def test_instances_that_were_given_another_name_are_said_and_not_called_good(fleet: Fleet) -> None:
    """What runs under the old name would serve on, and the new unit would wait for its NPUs at the next start."""
    facts = whole(fleet)
    old = {i.name: i.id for i in fleet.on(67)}
    settings = fleet.inventory.instances.model_copy(update={"name": "vllm-{index}"})
    renamed = Fleet(fleet.inventory.model_copy(update={"instances": settings}), fleet.path)
    facts = {**whole(renamed), 67: replace(facts[67], own_units=old)}
    found = expand.problems(context(renamed, facts, tuple(fleet.machines)))
    assert found[67] == [
        "67/0, 67/1, 67/2, 67/3 are qwen38-tp2-0.service, ... here and vllm-0.service, ... in the inventory: put "
        "instances.name back, or fleetctl remove-machine 67 and then fleetctl add-machine 67"
    ]
    assert set(found) == {67}


def test_a_shared_context_is_not_ownership(fleet: Fleet) -> None:
    assert problems(fleet, 67, npu=npus({3: (NpuProcess(77, "python3", 130),)})) == ""


def test_what_could_not_be_read_is_not_free(fleet: Fleet) -> None:
    assert "npu-smi" in problems(fleet, 67, npu=None, failed={"npu": "timeout"})
    assert "Docker engine does not answer" in problems(fleet, 67, containers=None)


def test_every_problem_is_said_at_once(fleet: Fleet) -> None:
    words = problems(fleet, 67, missing_tools=("rsync",), missing_paths=("/usr/local/dcmi",), npu=None)
    assert len(words.splitlines()) == 3


def test_drivers_that_differ_are_a_problem(fleet: Fleet) -> None:
    facts = empty(fleet)
    facts[67] = replace(facts[67], driver="25.2.0")
    found = expand.problems(context(fleet, facts, (67,)))
    assert "driver versions differ" in found[69][0]


def test_a_disk_without_room_for_the_model_is_refused_before_anything_runs(fleet: Fleet) -> None:
    facts = empty(fleet)
    small = {name: replace(disk, free=1 << 20) for name, disk in facts[67].disks.items()}
    assert "model: " in problems(fleet, 67, disks=small)
    assert "image: " in problems(fleet, 67, disks=small)


def test_stop_marks_drains_disables_and_keeps_the_place_in_the_table(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    ctx = context(fleet, whole(fleet), (67,), peers=table)
    found = actions.stop(ctx, fleet.on(67)[:1], who="me", when="now", reason="")
    assert [op.step for op in found.operations] == ["stop", "drain", "drain", "stop", "stop"]
    edit = found.operations[-1].action.edit(table)  # type: ignore[union-attr]
    assert [p.id for p in edit] == [p.id for p in table]
    assert next(p for p in edit if p.id == "67/0").state is peers.PeerState.OFF


def test_restart_of_an_instance_stopped_on_purpose_is_refused(fleet: Fleet) -> None:
    facts = whole(fleet)
    facts[67] = replace(facts[67], stopped={"qwen38-tp2-0": Stopped("me", "", "")})
    with pytest.raises(UsageError, match="67/0 was stopped"):
        actions.restart(context(fleet, facts, (67,)), fleet.on(67)[:1])


def test_start_of_what_serves_changes_nothing(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    assert actions.start(context(fleet, whole(fleet), (67,), peers=table), fleet.on(67)).operations == ()


def test_a_playbook_with_an_unknown_step_is_a_usage_error(tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "playbooks"
    folder.mkdir()
    (folder / "rollout.yaml").write_text("stages: [{name: a, machines: one by one, steps: [fly]}]")
    with pytest.raises(UsageError, match="no step 'fly'"):
        playbook.load("rollout", set(STEPS), tmp_path)


def test_clean_first_makes_room_before_anything_is_copied(fleet: Fleet) -> None:
    facts = empty(fleet)
    facts[67] = replace(facts[67], foreign_units=("minimax-h3.service",))
    assert steps_on(plan("add-machine", context(fleet, facts, (67,))), 67).index("clean") == 3
    machines = tuple(
        m.model_copy(update={"clean": m.clean.model_copy(update={"first": True})}) for m in fleet.inventory.machines
    )
    first = replace(fleet, inventory=fleet.inventory.model_copy(update={"machines": machines}))
    assert steps_on(plan("add-machine", context(first, facts, (67,))), 67).index("make-room") == 1


def test_the_plan_says_how_to_restore_what_it_cleans(fleet: Fleet) -> None:
    facts = empty(fleet)
    facts[67] = replace(facts[67], foreign_units=("minimax-h3.service",))
    found = plan("add-machine", context(fleet, facts, (67,)))
    assert any("systemctl enable --now NAME" in note for note in found.notes)


def test_a_run_that_was_cut_after_joining_is_verified_and_recorded_by_the_next(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    half = Release(1, Overrides(), "2026-08-29T12:00:00Z", "me", "rollout", "running")
    facts = {m: replace(f, release=json.loads(half.text())) for m, f in whole(fleet).items()}
    ctx = context(fleet, facts, tuple(fleet.machines), peers=table, release=half, current=half)
    found = plan("rollout", ctx)
    assert {op.step for op in found.operations} == {"release", "verify", "record"}
    good = replace(half, outcome="good")
    facts = {m: replace(f, release=json.loads(good.text())) for m, f in whole(fleet).items()}
    ctx = context(fleet, facts, tuple(fleet.machines), peers=table, release=half, current=good)
    assert plan("rollout", ctx).operations == ()


def test_a_new_balancer_configuration_is_tried_beside_the_running_one_first(fleet: Fleet) -> None:
    facts = whole(fleet)
    files = {**facts[69].files, str(paths.balancer(fleet) / "nginx.conf"): "0" * 64}
    facts[69] = replace(facts[69], files=files)
    table = peers.of(fleet, {}, fleet.machines)
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table))
    summaries = [op.summary for op in found.operations if op.step == "balancer"]
    assert "on loopback and check it" in summaries[1]
    assert summaries[2].startswith("write nginx.conf of ")
    assert summaries[2].endswith("reload openresty-qwen.service")
    assert summaries[-1].startswith("wait until configuration")


def test_a_drain_that_was_cut_short_is_finished_before_anything_is_stopped(fleet: Fleet) -> None:
    table = peers.of(fleet, {"67/2": peers.PeerState.DRAIN}, fleet.machines)
    found = actions.restart(context(fleet, whole(fleet), (67,), peers=table), [fleet.on(67)[2]])
    assert [op.step for op in found.operations][:2] == ["drain", "drain"]
    five = fleet.with_overrides(Overrides(tokens=5))
    rolled = plan("rollout", context(five, whole(fleet), tuple(fleet.machines), peers=table))
    assert next(op.summary for op in rolled.operations if op.target == "67/2").startswith("drain")


def test_nobody_joins_who_was_not_gated(fleet: Fleet) -> None:
    table = peers.of(fleet, {"67/1": peers.PeerState.DRAIN}, fleet.machines)
    found = plan("rollout", context(fleet, whole(fleet), tuple(fleet.machines), peers=table))
    assert [op.step for op in found.operations][:2] == ["gate", "join"]


def test_a_container_that_runs_without_its_unit_goes_before_its_npus_are_waited_for(fleet: Fleet) -> None:
    """Somebody stopped the unit and typed its `docker run` to look at something: stopping the unit ends nothing."""
    facts = whole(fleet)
    name = fleet.on(67)[2].name
    facts[67] = replace(facts[67], units={**facts[67].units, name: replace(facts[67].units[name], active="inactive")})
    table = peers.of(fleet, {}, fleet.machines)
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table))
    own = [op.summary for op in found.operations if op.target == "67/2"]
    removed = own.index(f"remove container {name}, which runs without its unit")
    assert own.index("wait for requests in flight") < removed < own.index("wait for free NPUs 4,5")
    facts = whole(fleet)
    found = plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table, key_hash="0" * 64))
    assert not [op for op in found.operations if op.summary.startswith("remove container")]


def test_a_new_key_restarts_the_engines_that_hold_the_old_one(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    found = plan("rollout", context(fleet, whole(fleet), tuple(fleet.machines), peers=table, key_hash="0" * 64))
    assert {op.target for op in found.operations if op.step == "roll"} == {i.id for i in fleet.instances}


def test_an_instance_that_is_still_loading_is_waited_for_and_not_started_again(fleet: Fleet) -> None:
    facts = whole(fleet)
    young = tuple(replace(c, created=1000) for c in facts[67].containers or ())
    facts[67] = replace(facts[67], containers=young, now=1100, health={})
    table = peers.of(fleet, {}, [69])
    found = plan("add-machine", context(fleet, facts, (67,), peers=table))
    assert {op.step for op in found.operations if op.machine == 67} == {"gate"}


def test_what_is_ours_or_the_systems_is_never_cleaned(fleet: Fleet) -> None:
    facts = empty(fleet)
    names = ("docker.service", "ssh.service", "openresty-qwen.service", "qwen38-tp2-0.service", "old.service")
    facts[69] = replace(facts[69], foreign_units=names)
    found = plan("add-machine", context(fleet, facts, (69,)))
    assert [op.summary.split()[4] for op in found.operations if op.step == "clean"] == ["old.service"]


def test_a_broken_peers_file_is_written_again_from_what_the_balancer_has(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    ctx = context(fleet, whole(fleet), tuple(fleet.machines), peers=table, peers_broken=True)
    assert "join" in {op.step for op in plan("rollout", ctx).operations}


def test_what_serves_on_another_port_than_is_wanted_is_drained_before_it_is_stopped(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    facts = whole(fleet)
    settings = fleet.inventory.instances.model_copy(update={"port": 8100})
    moved = Fleet(fleet.inventory.model_copy(update={"instances": settings}), fleet.path)
    for machine, one in facts.items():  # nothing answers yet where it is asked
        facts[machine] = replace(one, health={i: replace(h, http=None) for i, h in one.health.items()})
    found = plan("rollout", context(moved, facts, tuple(moved.machines), peers=table))
    one = [op.summary for op in found.operations if op.target == "67/2"]
    stopped = next(n for n, words in enumerate(one) if words.startswith("stop qwen38-tp2-2.service"))
    assert one.index("wait for requests in flight") < stopped < one.index("back in rotation")
