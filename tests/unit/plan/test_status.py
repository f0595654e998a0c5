"""One document feeds the table, the JSON and the exit code."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.balancer import peers
from fleetctl.cli.output import status_text, table
from fleetctl.errors import UnreachableError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import Health, Stopped, Unit
from fleetctl.plan import status

from .test_expand import whole


def document(fleet: Fleet, facts: dict, errors: dict | None = None) -> dict:  # type: ignore[type-arg]
    return status.document(fleet, facts, errors or {}, peers.of(fleet, {}, fleet.machines))


def one(found: dict, name: str) -> dict:  # type: ignore[type-arg]
    return next(i for m in found["machines"] for i in m["instances"] if i["id"] == name)


def test_a_whole_fleet_is_ok(fleet: Fleet) -> None:
    found = document(fleet, whole(fleet))
    assert found["verdict"] == "ok"
    assert one(found, "67/2")["state"] == "serving"
    assert status.problems(found) == []


def test_a_machine_that_does_not_answer_is_one_row_and_unknown_is_null(fleet: Fleet) -> None:
    facts = whole(fleet)
    del facts[67]
    found = document(fleet, facts, {67: UnreachableError("no answer", machine=67)})
    assert found["verdict"] == "critical"
    assert one(found, "67/0")["state"] == "unreachable"
    assert one(found, "67/0")["health"] is None
    assert one(found, "67/0")["mtp"] is None
    assert one(found, "67/0")["drift"] is None


def test_nothing_seen_is_unknown_and_not_ok(fleet: Fleet) -> None:
    assert document(fleet, {}, {})["verdict"] == "unknown"


def test_states_are_told_apart(fleet: Fleet) -> None:
    facts = whole(fleet)
    parked = Unit("failed", "failed", "enabled", "start-limit-hit", 5, "")
    names = [i.name for i in fleet.on(68)]
    facts[68] = replace(
        facts[68],
        units={**facts[68].units, names[0]: parked},
        health={**facts[68].health, 1: Health(None, None), 2: Health(503, None)},
        stopped={names[3]: Stopped("ops", "2026-08-29T00:00:00Z", "fan")},
    )
    found = document(fleet, facts)
    assert [one(found, f"68/{i}")["state"] for i in range(4)] == ["parked", "loading", "unhealthy", "stopped"]
    words = "\n".join(status.problems(found))
    assert "68/0 is parked" in words
    assert "fleetctl start 68/0" in words
    assert "68/3 stopped on purpose by ops (fan)" in words


def test_a_container_with_another_spec_is_drift(fleet: Fleet) -> None:
    facts = whole(fleet)
    old = facts[66].containers or ()
    changed = replace(old[0], labels={**old[0].labels, "fleetctl.spec": "0" * 12})
    facts[66] = replace(facts[66], containers=(changed, *old[1:]))
    found = document(fleet, facts)
    assert one(found, "66/0")["drift"] is True
    assert found["verdict"] == "warn"


def test_the_table_fits_80_columns(fleet: Fleet) -> None:
    text = status_text(document(fleet, whole(fleet)), [], wide=False)
    assert max(map(len, text.splitlines())) <= 80


def test_chinese_takes_two_columns() -> None:
    lines = table(("A", "B"), [("张三", "x"), ("abcd", "y")]).splitlines()
    assert lines[1].index("x") + 2 == lines[2].index("y")


def test_the_header_says_whose_inventory_was_read(fleet: Fleet) -> None:
    text = status_text(document(fleet, whole(fleet)), ["p"], wide=False, origin="inventory.yaml (in this folder)")
    first, second, third = text.splitlines()[:3]
    assert first.startswith(f"{fleet.name}  ")
    assert second == "  inventory: inventory.yaml (in this folder)"
    assert third == "  ! p"


def test_a_release_that_one_machine_has_not_recorded_yet_is_half_rolled_out(fleet: Fleet) -> None:
    """As `rollout` sees it: a kill between two machines' records."""
    half = {"number": 2, "outcome": "running", "command": "rollout --mtp 5"}
    facts = {m: replace(one, release={**half, "outcome": "good"}) for m, one in whole(fleet).items()}
    facts[66] = replace(facts[66], release=half)
    found = document(fleet, facts)
    assert found["release"] == {**half, "left_out": []}
    assert any("release 2 is half rolled out" in line for line in status.problems(found))


def test_a_release_that_is_on_some_machines_only_says_so_and_how_to_bring_it_to_all(fleet: Fleet) -> None:
    on67 = {"number": 2, "outcome": "good", "command": "rollout --mtp 5 --machines 67", "left_out": [69, 68, 66]}
    asked = fleet.with_overrides(Overrides(tokens=5))
    facts = {**whole(fleet), 67: whole(asked)[67]}
    for machine in (69, 67):
        facts[machine] = replace(facts[machine], release=on67)
    found = document(asked, facts)
    assert found["release"]["left_out"] == [69, 68, 66]
    line = "release 2 is on 67, and not on 69,68,66: fleetctl rollout --resume brings it to all; fleetctl rollback goes back"
    assert line in status.problems(found)
    # 66 joined with it: its record and the balancer's know.
    facts[66] = whole(asked)[66]
    for machine in (69, 66):
        facts[machine] = replace(facts[machine], release={**on67, "left_out": [69, 68]})
    found = document(asked, facts)
    assert found["release"]["left_out"] == [69, 68]
    assert any("release 2 is on 67,66, and not on 69,68" in line for line in status.problems(found))


def test_a_trial_that_was_taken_back_on_its_machine_leaves_nothing_to_bring_to_all(fleet: Fleet) -> None:
    """All machines run the same again, though only one of them has the way back recorded."""
    back = {"number": 3, "outcome": "good", "command": "rollback --machines 67", "left_out": [69, 68, 66], "back_to": 1}
    facts = whole(fleet)
    facts[67] = replace(facts[67], release=back)
    assert status.problems(document(fleet, facts)) == []


def test_a_release_file_that_is_none_is_named_and_left_out(fleet: Fleet) -> None:
    path = "/var/lib/fleetctl/qwen38/releases/00002.json"
    facts = whole(fleet)
    facts[68] = replace(facts[68], broken_releases={path: "it is empty"})
    found = document(fleet, facts)
    assert found["verdict"] == "warn"
    assert [line for line in status.problems(found) if path in line] == [
        f"68: {path}: it is empty: left out, the other machines' copies count; remove it, or copy theirs"
    ]


def test_of_the_environment_of_a_release_only_names_are_printed(fleet: Fleet) -> None:
    env = {"OMP_NUM_THREADS": "7"}
    given = {"number": 2, "outcome": "good", "overrides": {"env": env}, "whole": {"image": "i", "env": env}}
    found = document(fleet, {m: replace(f, release=given) for m, f in whole(fleet).items()})["release"]
    assert (found["overrides"]["env"], found["whole"]) == (
        ["OMP_NUM_THREADS"],
        {"image": "i", "env": ["OMP_NUM_THREADS"]},
    )


def test_what_finishes_a_release_can_be_pasted(fleet: Fleet) -> None:
    facts = whole(fleet)
    facts[69] = replace(facts[69], release={"number": 2, "outcome": "running", "command": "rollout --mtp 5"})
    found = document(fleet, facts)
    assert "release 2 is half rolled out: fleetctl rollout --mtp 5 finishes it" in status.problems(found)


def released(fleet: Fleet, **more: object) -> dict:  # type: ignore[type-arg]
    """Every machine of a whole fleet knows this release."""
    one = {"number": 3, "outcome": "good", "command": "rollout --mtp 2", **more}
    return {m: replace(f, release=one) for m, f in whole(fleet).items()}


def other_spec(facts: dict) -> None:  # type: ignore[type-arg]
    old = list(facts[66].containers)
    changed = replace(old[0], labels={**old[0].labels, "fleetctl.spec": "0"})
    facts[66] = replace(facts[66], containers=(changed, *old[1:]))


def test_no_hint_leads_away_from_the_release_in_force(fleet: Fleet) -> None:
    """A plain rollout is the inventory as it stands: it would undo what the release has over it."""
    facts = released(fleet, overrides={"tokens": 2})
    other_spec(facts)
    facts[68] = replace(facts[68], own_balancers=("old",))
    table = tuple(replace(peer, weight=7) for peer in peers.of(fleet, {}, fleet.machines) if peer.id != "67/0")
    said = status.problems(status.document(fleet, facts, {}, table))
    asked = [line for line in said if "fleetctl rollout" in line]
    assert len(asked) == 4, said
    assert all("fleetctl rollout --resume" in line for line in asked)
    bare = {m: replace(f, release=None) for m, f in facts.items()}
    said = status.problems(status.document(fleet, bare, {}, table))
    assert len([line for line in said if "fleetctl rollout" in line and "--resume" not in line]) == 4


def test_who_is_in_rotation_is_unknown_while_the_balancers_machine_is_silent(fleet: Fleet) -> None:
    facts = whole(fleet)
    del facts[69]
    found = status.document(fleet, facts, {69: UnreachableError("no answer", machine=69)}, ())
    assert one(found, "67/0")["balancer"] is None
    assert not any("not in rotation" in line for line in status.problems(found))
    row = next(line for line in status_text(found, [], wide=False).splitlines() if line.startswith("67/0"))
    assert row.split()[3] == "-"


def test_an_instance_that_the_balancer_does_not_have_is_absent(fleet: Fleet) -> None:
    found = status.document(fleet, whole(fleet), {}, ())
    assert one(found, "67/0")["balancer"] == "absent"
    assert "67/0 serves and is not in rotation: fleetctl rollout" in status.problems(found)


def test_the_inventory_is_said_to_be_ahead_only_where_it_is(fleet: Fleet) -> None:
    same = {"tokens": fleet.tokens, "image": fleet.image, "engine": fleet.engine}
    found = document(fleet, released(fleet, back_to=1, whole=same))
    assert (status.problems(found), found["inventory_ahead"]) == ([], False)
    head = status_text(found, [], wide=False).splitlines()[0]
    assert head.endswith("release 3 (good, went back to 1)")
    assert len(head) <= 80
    found = document(fleet, released(fleet, back_to=1, whole={**same, "tokens": 2}, overrides={"tokens": 2}))
    ahead = "release 3 went back to 1: the inventory is ahead (fleetctl rollout --forward)"
    assert ahead in status.problems(found)


def test_what_is_known_of_an_instance_that_a_failed_rollout_left_drained_is_said(fleet: Fleet) -> None:
    facts = released(fleet, outcome="running")
    name = fleet.on(67)[0].name
    facts[67] = replace(facts[67], doubtful={name: Stopped("watchdog", "", "none of its last 40 drafts was accepted")})
    live = facts[69].balancer
    sick = tuple(replace(peer, health="down") if peer.id == "67/0" else peer for peer in live.peers)
    facts[69] = replace(facts[69], balancer=replace(live, peers=sick))
    table = peers.of(fleet, {"67/0": peers.PeerState.DRAIN}, fleet.machines)
    said = status.problems(status.document(fleet, facts, {}, table))
    assert said[0] == (
        "67/0 is drained, by a rollout that did not end well, and the balancer finds it down, and none of its last 40 "
        "drafts was accepted: it comes back when that is finished"
    )


def test_a_record_that_cannot_be_read_is_a_problem_of_its_machine_and_no_traceback(fleet: Fleet) -> None:
    facts = released(fleet)
    facts[68] = replace(facts[68], release=None, failed={"release": "it has another form"})
    found = document(fleet, facts)
    assert (found["verdict"], found["release"]["number"]) == ("warn", 3)
    assert status.problems(found) == [
        f"68: /var/lib/fleetctl/{fleet.name}/release.json is no record of a release any more: "
        "fleetctl rollout --resume writes it anew"
    ]
    assert "release 3 (unknown)" in status_text(document(fleet, released(fleet, outcome="")), [], wide=False)
