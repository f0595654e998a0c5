"""One document feeds the table, the JSON and the exit code."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.balancer import peers
from fleetctl.cli.output import status_text, table
from fleetctl.errors import UnreachableError
from fleetctl.fleet.fleet import Fleet
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
    assert found["release"] == half
    assert any("release 2 is half rolled out" in line for line in status.problems(found))


def test_what_finishes_a_release_can_be_pasted(fleet: Fleet) -> None:
    facts = whole(fleet)
    facts[69] = replace(facts[69], release={"number": 2, "outcome": "running", "command": "rollout --mtp 5"})
    found = document(fleet, facts)
    assert "release 2 is half rolled out: fleetctl rollout --mtp 5 finishes it" in status.problems(found)
