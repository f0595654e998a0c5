"""The balancer goes to another machine: it is whole there before the old one is removed, and there is never a third."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fleetctl.commands import paths, units
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import Facts
from fleetctl.observe.observe import own_balancers
from fleetctl.plan import expand, status
from fleetctl.plan.release import Release

from .test_expand import FLAVOUR, context, plan, whole
from .test_key import table, words


def moved(fleet: Fleet) -> tuple[Fleet, dict[int, Facts]]:
    """The inventory says 68 now; 69 runs it still."""
    balancer = fleet.inventory.balancer.model_copy(update={"machine": 68})
    there = Fleet(fleet.inventory.model_copy(update={"balancer": balancer, "source": 68}), fleet.path)
    facts = whole(fleet)
    facts[69] = replace(facts[69], own_balancers=("openresty-qwen",), balancer=None, peers=None)
    facts[68] = replace(facts[68], flavour=FLAVOUR)
    return there, facts


def test_the_new_balancer_notes_since_when_and_the_old_one_stays_until_users_can_leave(fleet: Fleet) -> None:
    there, facts = moved(fleet)
    found = plan("rollout", context(there, facts, tuple(there.machines)))
    summaries = [(op.machine, op.summary) for op in found.operations if op.step not in ("release", "record")]
    assert not any("remove openresty" in summary for _, summary in summaries)
    assert any("point the gateway at 68:2219, then fleetctl rollout --resume" in note for note in found.notes)
    noted = summaries.index((68, "write /etc/fleetctl/qwen38/balancer-since"))
    started = next(
        n for n, (machine, summary) in enumerate(summaries) if machine == 68 and "start openresty" in summary
    )
    assert noted < started
    assert not any("restart" in summary or summary.startswith("stop qwen") for _, summary in summaries)


def test_the_next_rollout_removes_the_old_balancer_files_first(fleet: Fleet) -> None:
    there, facts = moved(fleet)
    facts[68] = replace(facts[68], balancer=whole(fleet)[69].balancer)
    found = plan("rollout", context(there, facts, tuple(there.machines), peers=table(fleet)))
    assert [op.summary for op in found.operations if op.step == "orphans"] == [
        "remove the balancer's files",
        "stop, disable and remove openresty-qwen.service: the balancer is on 68",
    ]
    (files,) = (op.detail.split() for op in found.operations if op.summary == "remove the balancer's files")
    listed = str(paths.applied(fleet))
    assert {str(paths.balancer(fleet)), listed, f"{listed}.previous"} <= set(files)


def test_what_serves_is_not_changed_by_a_balancer_that_does_not_see_it(fleet: Fleet) -> None:
    there, facts = moved(fleet)
    more = there.with_overrides(Overrides(tokens=5))
    good = Release(3, Overrides(), "", "", "", "good")
    ctx = context(more, facts, tuple(more.machines), current=good)
    assert "fleetctl rollout --resume" in str(expand.problems(ctx)[68])
    alone = context(there, facts, tuple(there.machines), current=good)
    assert "--resume" not in str(expand.problems(alone))


def test_what_is_the_balancer_already_notes_nothing(fleet: Fleet) -> None:
    found = plan("rollout", context(fleet, whole(fleet), tuple(fleet.machines), peers=()))
    assert not any("balancer-since" in summary for summary in words(found))


def test_without_the_dead_machine_its_instances_are_not_in_the_table(fleet: Fleet) -> None:
    there, facts = moved(fleet)
    del facts[69]
    found = words(plan("rollout", context(there, facts, (68, 67, 66))))
    assert any(summary.startswith("join: 8 -> 12 backends") for summary in found)
    assert not any("69" in summary for summary in found if "qwen" in summary)


def test_a_dead_machine_that_is_not_meant_stops_nobody(fleet: Fleet) -> None:
    there, facts = moved(fleet)
    dead = "10.255.254.69:8000 Failed to connect to 10.255.254.69 port 8000"
    facts[68] = replace(facts[68], unreachable_peers=(dead,))
    assert f"cannot reach {dead}" in str(expand.problems(context(there, facts, tuple(there.machines))))
    del facts[69]
    assert "cannot reach" not in str(expand.problems(context(there, facts, (68, 67, 66))))


def test_status_names_a_balancer_too_many(fleet: Fleet) -> None:
    there, facts = moved(fleet)
    said = status.problems(status.document(there, facts, {}, ()))
    assert "69: openresty-qwen.service is one balancer too many: fleetctl rollout removes it" in said


def test_units_of_the_balancer_are_known_by_their_header() -> None:
    text = "lb.service:# fleet=qwen38 balancer\nx.service:# fleet=qwen38 instance=69/0 spec=1 text=2\n"
    assert own_balancers(text) == ("lb",)


@pytest.mark.parametrize(
    ("mine", "others", "may"),
    [
        ("f 00007-2026-01-01T000000Z", {}, True),
        ("f 00007-2026-01-01T000000Z", {"a": "f 00006-2026-03-01T000000Z"}, True),
        ("f 00007-2026-01-01T000000Z", {"a": "f 00006-2026-03-01T000000Z", "b": "f 00008-2026-01-02T000000Z"}, False),
        ("f 00007-2026-01-01T000000Z", {"a": "f 00007-2026-01-02T000000Z"}, False),
        ("f 00007-2026-01-01T000000Z", {"a": None}, True),
        ("", {"a": "f 00001-2026-01-01T000000Z"}, False),
        ("", {}, True),
        ("f 00001-2026-01-01T000000Z", {"a": "other 00009-2026-01-01T000000Z"}, True),
    ],
)
def test_it_does_not_start_beside_one_that_is_newer(
    fleet: Fleet, tmp_path: Path, mine: str, others: dict[str, str | None], may: bool
) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    script = next(text for path, text in units.alone(fleet).items() if path.endswith(".sh"))
    (folder / "alone.sh").write_text(script)
    if mine:
        (folder / "balancer-since").write_text(f"{mine}\n")
    urls = [f"file://{tmp_path}/nobody"]
    for name, since in others.items():
        quoted = "null" if since is None else f'"{since}"'
        (tmp_path / name).write_text(f'{{"status":"ok","backends":16,"since":{quoted}}}\n')
        urls.append(f"file://{tmp_path}/{name}")
    (folder / "balancer-others").write_text("".join(f"{url}\n" for url in urls))
    done = subprocess.run(
        ["sh", folder / "alone.sh", folder], env=os.environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) is may, done.stderr
    assert may or "fleetctl rollout" in done.stderr
