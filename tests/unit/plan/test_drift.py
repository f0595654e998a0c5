"""What was changed by hand is seen, said, not started, and put right. Nothing here touches a machine."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace

import pytest

from fleetctl.balancer import peers
from fleetctl.commands import paths, units
from fleetctl.errors import CommandError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import Facts, Health, Stopped
from fleetctl.plan import actions, drift, status
from fleetctl.plan.desired import State, sha256
from fleetctl.plan.operation import Operation, Plan

from ..conftest import KEY
from .test_expand import context, plan, whole

NAME = "qwen38-tp2-2"  # 67/2
PATH = str(paths.unit(NAME))


def with_text(facts: dict[int, Facts], text: str) -> dict[int, Facts]:
    """67/2 has this unit file."""
    seen = facts[67]
    files, texts = {**seen.files, PATH: sha256(text)}, {**seen.unit_texts, PATH: text}
    return {**facts, 67: replace(seen, files=files, unit_texts=texts)}


def edited(fleet: Fleet) -> dict[int, Facts]:
    facts = whole(fleet)
    return with_text(facts, facts[67].unit_texts[PATH].replace("RestartSec=15", "RestartSec=60"))


def with_unit(facts: dict[int, Facts], **changes: object) -> dict[int, Facts]:
    seen = facts[67]
    unit = replace(seen.units[NAME], **changes)  # type: ignore[arg-type]
    return {**facts, 67: replace(seen, units={**seen.units, NAME: unit})}


def rollout(fleet: Fleet, facts: dict[int, Facts]) -> Plan:
    table = peers.of(fleet, {}, fleet.machines)
    return plan("rollout", context(fleet, facts, tuple(fleet.machines), peers=table))


def on_67_2(found: Plan, *steps: str) -> list[Operation]:
    return [op for op in found.operations if op.step in steps and op.target in ("67/2", "67")]


def seen_by_status(fleet: Fleet, facts: dict[int, Facts]) -> tuple[dict, list[str]]:  # type: ignore[type-arg]
    found = status.document(fleet, facts, {}, peers.of(fleet, {}, fleet.machines))
    one = next(i for m in found["machines"] for i in m["instances"] if i["id"] == "67/2")
    return {**one, "verdict": found["verdict"]}, status.problems(found)


def test_a_unit_says_of_itself_whether_it_was_edited(fleet: Fleet) -> None:
    text, _ = units.instance(fleet, fleet.on(67)[2], whole(fleet)[67].topology)
    assert units.edited(text) is False
    assert units.edited(text.replace("TimeoutStopSec=", "TimeoutStopSec=1")) is True
    assert units.edited(text + "\n") is True
    assert units.edited("[Unit]\nDescription=somebody else's\n") is None


def test_status_says_in_words_that_a_unit_was_changed_by_hand(fleet: Fleet) -> None:
    one, problems = seen_by_status(fleet, edited(fleet))
    assert (one["drift"], one["drift_reason"]) == (True, "its unit file was changed by hand")
    assert (one["state"], one["verdict"]) == ("serving", "warn")
    assert problems == ["67/2: its unit file was changed by hand: fleetctl rollout puts it right"]


def test_a_drop_in_of_the_unit_is_a_change_by_hand_and_one_of_all_units_is_not(fleet: Fleet) -> None:
    own = f"{PATH}.d/override.conf"
    one, problems = seen_by_status(fleet, with_unit(whole(fleet), dropins=(own,)))
    assert own in one["drift_reason"]
    assert len(problems) == 1
    one, problems = seen_by_status(fleet, with_unit(whole(fleet), dropins=("/etc/systemd/system/service.d/all.conf",)))
    assert (one["drift"], problems) == (False, [])


def test_a_unit_that_another_fleetctl_wrote_was_not_changed_by_hand(fleet: Fleet) -> None:
    five = fleet.with_overrides(Overrides(tokens=5))
    text, _ = units.instance(five, five.on(67)[2], whole(fleet)[67].topology)
    facts = with_text(whole(fleet), text)
    one, _ = seen_by_status(fleet, facts)
    assert one["drift"] is False
    comparison = context(fleet, facts, (67,)).comparisons["67/2"]
    assert (comparison.state, comparison.write_unit, comparison.by_hand) == (State.UP_TO_DATE, True, None)
    table = peers.of(fleet, {}, fleet.machines)
    assert actions.restart(context(fleet, facts, (67,), peers=table), [fleet.on(67)[2]]).operations


@pytest.mark.parametrize("now", [False, True])
def test_restart_refuses_what_was_edited_and_says_what_puts_it_right(fleet: Fleet, now: bool) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    with pytest.raises(CommandError) as caught:
        actions.restart(context(fleet, edited(fleet), (67,), peers=table), [fleet.on(67)[2]], now=now)
    assert "67/2: its unit file was changed by hand" in caught.value.cause
    assert "nothing was changed" in str(caught.value)
    assert "fleetctl rollout" in str(caught.value)


def test_start_refuses_what_was_edited_and_does_not_serve(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    down = with_unit(edited(fleet), active="inactive")
    with pytest.raises(CommandError):
        actions.start(context(fleet, down, (67,), peers=table), [fleet.on(67)[2]])
    # What serves is left alone, so nothing edited would be started.
    assert actions.start(context(fleet, edited(fleet), (67,), peers=table), [fleet.on(67)[2]]).operations == ()


def test_a_rollout_keeps_the_edit_writes_the_unit_and_restarts_only_that_instance(fleet: Fleet) -> None:
    found = rollout(fleet, edited(fleet))
    own = on_67_2(found, "units")
    assert [op.summary.split(" in /")[0].split(" /etc")[0] for op in own] == [
        "make cache folders of 1 instances",
        f"save {NAME}.service",
        "write",
        "daemon-reload",
    ]
    assert "its unit file was changed by hand" in own[1].summary
    assert {op.target for op in found.operations if op.step == "roll"} == {"67/2"}
    assert any("(its unit file was changed by hand)" in op.summary for op in on_67_2(found, "roll"))


def test_a_rollout_takes_a_drop_in_away_and_keeps_a_copy(fleet: Fleet) -> None:
    found = rollout(fleet, with_unit(whole(fleet), dropins=(f"{PATH}.d/override.conf",)))
    assert [op.summary.split(" ")[0] for op in on_67_2(found, "units")] == ["save", "daemon-reload"]
    assert {op.target for op in found.operations if op.step == "roll"} == {"67/2"}


def test_a_disabled_unit_is_drift_and_enabled_again_without_a_restart(fleet: Fleet) -> None:
    facts = with_unit(whole(fleet), enabled="disabled")
    one, problems = seen_by_status(fleet, facts)
    assert one["drift_reason"] == "its unit is disabled: it would not come back after a reboot"
    assert len(problems) == 1
    found = rollout(fleet, facts)
    work = [op for op in found.operations if op.step not in ("release", "record")]
    assert [(op.target, op.summary) for op in work] == [("67/2", f"enable {NAME}.service: it was disabled by hand")]
    table = peers.of(fleet, {}, fleet.machines)
    started = actions.start(context(fleet, facts, (67,), peers=table), [fleet.on(67)[2]])
    assert started.operations[0].step == "start"
    assert not any("stop" in op.summary for op in started.operations)


def test_a_container_that_is_not_ours_or_not_of_its_unit_is_said_to_be_so(fleet: Fleet) -> None:
    facts = whole(fleet)
    containers = facts[67].containers or ()
    for labels, words in (
        ({}, "its container was replaced by hand"),
        ({"fleetctl.spec": "0" * 12}, "its container was not started from its unit file"),
        ({"fleetctl.spec": "0" * 12, "fleetctl.tokens": "3"}, "it runs with mtp 3, 4 is wanted"),
    ):
        changed = replace(containers[2], labels={**containers[2].labels, **labels} if labels else {})
        seen = {**facts, 67: replace(facts[67], containers=(*containers[:2], changed, containers[3]))}
        assert seen_by_status(fleet, seen)[0]["drift_reason"] == words


def test_a_peer_that_the_inventory_has_not_is_drift_of_the_balancer(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    table = (*table[:-1], replace(table[-1], address="10.9.9.9:8003"))
    found = status.document(fleet, whole(fleet), {}, table)
    assert found["verdict"] == "warn"
    assert "10.9.9.9:8003" in found["balancer"]["drift_reason"]
    assert any(p.startswith("balancer: its table has") and p.endswith("puts it right") for p in status.problems(found))
    again = plan("rollout", context(fleet, whole(fleet), tuple(fleet.machines), peers=table))
    assert any(op.step == "join" for op in again.operations)


def with_balancer_files(fleet: Fleet, found: dict[str, str] | None) -> dict[int, Facts]:
    """What the balancer's machine says of the files that were applied there, by their names."""
    facts, folder = whole(fleet), paths.balancer(fleet)
    said = None if found is None else {str(folder / name): how for name, how in found.items()}
    hashes = {**facts[69].files}
    for path, how in (said or {}).items():
        hashes[path] = "0" * 64
        if how == "missing":
            del hashes[path]
    return {**facts, 69: replace(facts[69], balancer_files=said, files=hashes)}


def test_a_file_of_the_balancer_that_was_changed_by_hand_is_said_and_put_right(fleet: Fleet) -> None:
    facts = with_balancer_files(fleet, {"nginx.conf": "changed", "lua/keys.lua": "changed", "lua/json.lua": "missing"})
    table = peers.of(fleet, {}, fleet.machines)
    found = status.document(fleet, facts, {}, table)
    folder = paths.balancer(fleet)
    assert found["verdict"] == "warn"
    assert found["balancer"]["files"] == {
        "changed": [f"{folder}/lua/keys.lua", f"{folder}/nginx.conf"],
        "missing": [f"{folder}/lua/json.lua"],
    }
    words = "its lua/keys.lua, nginx.conf were changed by hand, its lua/json.lua is gone"
    assert found["balancer"]["drift_reason"] == words
    assert status.problems(found) == [
        f"balancer: {words}: fleetctl balancer diff shows how, fleetctl rollout puts it right"
    ]
    own = [op.summary for op in rollout(fleet, facts).operations if op.step == "balancer"]
    assert f"write 3 files of {folder}, reload openresty-qwen.service ({words})" in own


def test_many_files_of_the_balancer_are_counted(fleet: Fleet) -> None:
    facts = with_balancer_files(fleet, {f"lua/{number}.lua": "missing" for number in range(9)})
    assert drift.files(fleet, facts[69]) == "its lua/0.lua, lua/1.lua, lua/2.lua, lua/3.lua and 5 more are gone"


@pytest.mark.parametrize(("found", "shown"), [(None, None), ({}, {"changed": [], "missing": []})])
def test_files_of_the_balancer_that_are_as_applied_or_not_known_are_no_problem(
    fleet: Fleet, found: dict[str, str] | None, shown: dict[str, list[str]] | None
) -> None:
    """An older fleetctl has left no list of them."""
    facts = with_balancer_files(fleet, found)
    seen = status.document(fleet, facts, {}, peers.of(fleet, {}, fleet.machines))
    assert seen["balancer"]["files"] == shown
    assert (seen["balancer"]["drift_reason"], seen["verdict"], status.problems(seen)) == (None, "ok", [])


@pytest.mark.parametrize("listed", [None, "0" * 64])
def test_a_rollout_notes_what_the_files_of_the_balancer_are_where_that_is_not_known(
    fleet: Fleet, listed: str | None
) -> None:
    """Nothing is reloaded for it."""
    facts, path = whole(fleet), str(paths.applied(fleet))
    files = {name: hash_ for name, hash_ in facts[69].files.items() if name != path}
    facts[69] = replace(facts[69], files=files | ({path: listed} if listed else {}))
    own = [op.summary for op in rollout(fleet, facts).operations if op.step == "balancer"]
    assert own == [f"write {path}"]


def test_without_lua_every_edit_of_the_table_notes_the_file_that_it_writes(fleet: Fleet) -> None:
    plain = fleet.inventory.balancer.model_copy(update={"mode": "plain"})
    other = replace(fleet, inventory=fleet.inventory.model_copy(update={"balancer": plain}))
    edit = context(other, whole(fleet), (69,)).edit(lambda table: table)
    assert edit.configuration is not None
    assert edit.applied == str(paths.applied(fleet))
    with tarfile.open(fileobj=io.BytesIO(edit.configuration(peers.of(fleet, {}, fleet.machines)))) as tar:
        text = {name: (tar.extractfile(name) or io.BytesIO()).read().decode() for name in tar.getnames()}
    assert text["applied.sha256"] == f"{sha256(text['nginx.conf'])}  {paths.balancer(fleet)}/nginx.conf\n"


def parked(fleet: Fleet) -> dict[int, Facts]:
    facts = with_unit(whole(fleet), active="inactive", sub="dead")
    note = Stopped("watchdog", "2026-08-29T12:00:00Z", "no progress for 120 s, after 2 restarts within an hour")
    health = {**facts[67].health, 2: Health(None, None)}
    containers = tuple(replace(c, state="exited") if c.name == NAME else c for c in facts[67].containers or ())
    return {**facts, 67: replace(facts[67], parked={NAME: note}, health=health, containers=containers)}


def test_what_the_watchdog_parked_is_shown_with_the_command_that_revives_it(fleet: Fleet) -> None:
    one, problems = seen_by_status(fleet, parked(fleet))
    assert (one["state"], one["verdict"]) == ("parked", "critical")
    assert one["parked"]["who"] == "watchdog"
    assert any("parked by the watchdog (no progress" in p and p.endswith("fleetctl start 67/2") for p in problems)


def test_start_takes_the_mark_of_the_watchdog_away(fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    found = actions.start(context(fleet, parked(fleet), (67,), peers=table), [fleet.on(67)[2]])
    (starting,) = (op for op in found.operations if op.summary.startswith("start "))
    assert f"/var/lib/fleetctl/{fleet.name}/parked/{NAME}" in starting.detail


def test_a_mark_of_one_that_somebody_started_is_no_longer_true(fleet: Fleet) -> None:
    facts = parked(fleet)
    facts = {**facts, 67: replace(whole(fleet)[67], parked=facts[67].parked)}
    assert seen_by_status(fleet, facts)[0]["state"] == "serving"


def test_one_that_drafts_for_nothing_is_a_warning_with_the_command_that_drains_it(fleet: Fleet) -> None:
    facts = whole(fleet)
    note = Stopped("watchdog", "2026-08-29T12:00:00Z", "none of its last 900 drafts was accepted (MTP)")
    facts[67] = replace(facts[67], doubtful={NAME: note})
    one, problems = seen_by_status(fleet, facts)
    assert (one["state"], one["verdict"]) == ("serving", "warn")
    assert problems == ["67/2: none of its last 900 drafts was accepted (MTP): fleetctl restart 67/2"]


def test_the_watchdog_is_installed_where_it_is_missing_and_its_timer_started(fleet: Fleet) -> None:
    facts = whole(fleet)
    script, service, timer = map(str, paths.watchdog_files(fleet))
    files = {path: h for path, h in facts[67].files.items() if path not in (script, service, timer)}
    known = {name: unit for name, unit in facts[67].units.items() if not name.endswith(".timer")}
    found = rollout(fleet, {**facts, 67: replace(facts[67], files=files, units=known)})
    own = [op.summary for op in found.operations if op.step == "units"]
    assert own == [
        f"write {script}",
        f"write {service}",
        f"write {timer}",
        "daemon-reload",
        f"start {paths.watchdog_unit(fleet)}.timer",
    ]
    assert not any(op.step in ("roll", "start", "join") for op in found.operations)


def test_a_new_script_alone_needs_no_reload(fleet: Fleet) -> None:
    facts = whole(fleet)
    script = str(paths.watchdog(fleet))
    found = rollout(fleet, {**facts, 67: replace(facts[67], files={**facts[67].files, script: "0" * 64})})
    assert [op.summary for op in found.operations if op.step == "units"] == [f"write {script}"]


def test_a_timer_that_was_stopped_by_hand_is_started_again(fleet: Fleet) -> None:
    facts = whole(fleet)
    name = f"{paths.watchdog_unit(fleet)}.timer"
    dead = replace(facts[67].units[name], active="inactive")
    found = rollout(fleet, {**facts, 67: replace(facts[67], units={**facts[67].units, name: dead})})
    assert [op.summary for op in found.operations if op.step == "units"] == [f"start {name}"]


def test_a_watchdog_that_is_not_wanted_is_removed_and_then_nothing_is_left_to_do(fleet: Fleet) -> None:
    inventory = fleet.inventory.model_copy(
        update={"watchdog": fleet.inventory.watchdog.model_copy(update={"enabled": False})}
    )
    without = replace(fleet, inventory=inventory)
    found = rollout(without, whole(fleet))
    assert [op.summary for op in found.operations if op.step == "units"] == [
        "stop, disable and remove the watchdog"
    ] * 4
    assert [op for op in rollout(without, whole(without)).operations if op.step == "units"] == []


@pytest.mark.parametrize(
    ("hash_", "mode", "words"),
    [
        ("0" * 64, "600 0", "its API key file has another key than the balancer's"),
        (None, None, "its API key file is gone"),
        (sha256(KEY), "644 0", "others than root may read its API key file (644 0)"),
    ],
)
def test_restart_refuses_a_machine_whose_key_file_was_changed(
    fleet: Fleet, hash_: str | None, mode: str | None, words: str
) -> None:
    """The gate asks with that very file: it would find an engine that refuses everybody else in order."""
    facts, path = whole(fleet), str(paths.api_key(fleet))
    files = {**facts[67].files, path: hash_} if hash_ else {k: v for k, v in facts[67].files.items() if k != path}
    facts[67] = replace(facts[67], files=files, key_mode=mode)
    assert drift.key(fleet, facts[67], facts[69]) == words
    table = peers.of(fleet, {}, fleet.machines)
    document = status.document(fleet, facts, {}, table)
    assert document["verdict"] != "ok"
    assert [one for one in status.problems(document) if words in one]
    with pytest.raises(CommandError) as caught:
        actions.restart(context(fleet, facts, (67,), peers=table), [fleet.on(67)[2]])
    assert words in caught.value.cause
    assert "write /etc/fleetctl/qwen38/api-key (0600)" in [op.summary for op in rollout(fleet, facts).operations]


def test_while_a_key_is_changed_both_are_good(fleet: Fleet) -> None:
    facts, path = whole(fleet), str(paths.api_key(fleet))
    facts[67] = replace(facts[67], files={**facts[67].files, path: "1" * 64}, key_mode="600 0")
    both = replace(facts[69], files={**facts[69].files, str(paths.old_key(fleet)): "1" * 64})
    assert drift.key(fleet, facts[67], both) is None
    assert drift.key(fleet, facts[67], None) is None, "it cannot be told"
