"""Whatever the scenarios say of a fleet, well or not, is Chinese in Chinese: checks, tables, notes, plots."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from html import unescape
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fleetctl.bench import ab, ab_result, scenarios
from fleetctl.bench.load import Limits
from fleetctl.bench.perform import Eyes
from fleetctl.bench.plot import plots
from fleetctl.bench.results import result
from fleetctl.bench.rounds import CrossCheck, Round
from fleetctl.bench.tables import Result
from fleetctl.report.words import TABLES, Words
from tests.unit.bench.fake import Fake, performed

DRAWN = re.compile(r"<(?:text|title)\b[^>]*>([^<]*)<")
SENTENCE = re.compile(r"[a-z]{2,}(?: [a-z]{2,}){2,}")
NEUTRAL = re.compile(r"(?:tok/s|mtp \d+|[A-Z]\d?|c=\d+|\d+/\d+)(?:, .*)?")
VICTIM = "10.0.0.69:8001"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No balancer here whose workers would have to add up their counters."""
    monkeypatch.setattr("fleetctl.bench.perform.SETTLE_SECONDS", 0.0)


def said(found: Result) -> Iterator[str]:
    for check in found.checks:
        yield from (check.what, check.expected, check.seen, check.bound)
    for table in found.tables:
        yield table.title
        yield from (cell for row in table.rows for cell in row if isinstance(cell, str))
    yield from (*found.notes, *found.invalid, *([found.partial] if found.partial else []))


def english(found: Result, drawn: dict[str, str] | None = None) -> list[str]:
    """What stays as it is in a Chinese report, and names of columns that no table of words has."""
    words = Words("zh")
    texts = [*said(found), *(unescape(text) for svg in (drawn or {}).values() for text in DRAWN.findall(svg))]
    left = [text for text in texts if re.search("[a-z]{3}", text) and words.said(text) == text]
    # What a server said is quoted; a sentence of ours within another one is none of its.
    rest = {text: re.sub("`.*?`", "", words.said(text).partition("第一个：")[0]) for text in texts}
    left += [text for text in texts if SENTENCE.search(rest[text])]
    names = [column.name for table in found.tables for column in table.columns if len(column.name) > 1]
    left += [name for name in names if any(f"column.{name}" not in table for table in TABLES.values())]
    return [text for text in dict.fromkeys(left) if not NEUTRAL.fullmatch(text)]


def counters() -> Any:
    names = ("time_to_first_token_seconds_sum", "time_to_first_token_seconds_count", "prefix_cache_queries_total")
    names += ("prefix_cache_hits_total", "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total")  # type: ignore[assignment]
    names += ("spec_decode_num_accepted_tokens_total", "num_preemptions_total")  # type: ignore[assignment]
    looks = count()

    def look() -> dict[str, dict[str, float]]:
        at = next(looks)
        return {"69/0": {f"vllm:{name}": 10.0 * at for name in names}}

    return look


SMALL = (
    scenarios.Distribution(keys=60),
    scenarios.Affinity(sessions=8),
    scenarios.Instance(backend="69/1", users=(1, 2), tokens=4, seconds=0.1),
    scenarios.Sequential(requests=8, tokens=4),
    scenarios.Scaling(users=(1, 4), tokens=4, seconds=0.1, passes=2),
    scenarios.Scaling(users=(1, 4), tokens=4, seconds=0.1, passes=2, stream=False),
    scenarios.Mixed(prompt=2000, times=1, rate=20, tokens=2, apart=0.3),
    scenarios.Soak(rate=40, seconds=3, window=0.5, tokens=4),
    scenarios.LongContext(lengths=(3000,), times=2, tokens=2),
)


@pytest.mark.parametrize("scenario", SMALL, ids=lambda one: one.name)
def test_what_a_scenario_says_is_chinese(scenario: Any, tmp_path: Path) -> None:
    well = performed(Fake(), scenario, tmp_path / "well.jsonl", eyes=Eyes(lambda: 0, lambda: 5, counters()))
    assert english(result(well), plots(well)) == []
    fake = Fake(every=0.002)
    fake.answers = lambda session: fake.peers[len(session) % 2].address  # type: ignore[method-assign]
    more = iter((0, 10_000))
    astray = performed(fake, scenario, tmp_path / "astray.jsonl", eyes=Eyes(lambda: 900, lambda: next(more)))
    assert english(result(astray), plots(astray)) == []


@pytest.mark.parametrize("scenario", [SMALL[0], SMALL[3], SMALL[4]], ids=lambda one: one.name)
def test_what_a_scenario_says_of_failures_and_of_its_limits_is_chinese(scenario: Any, tmp_path: Path) -> None:
    for number, fault in enumerate(("500", "html", "usage", "cut")):
        limits = Limits(errors=3)
        run = performed(Fake(fault=fault), scenario, tmp_path / f"{number}.jsonl", limits=limits)
        assert english(result(run)) == []
    nowhere: dict[str, Any] = {"changes": {"home": lambda session: None}, "header": {"affinity": "least_conn"}}
    if scenario.name == "distribution":
        run = performed(Fake(), scenario, tmp_path / "nowhere.jsonl", **nowhere)
        assert english(result(run)) == []
        run = performed(Fake(), scenarios.Affinity(sessions=8), tmp_path / "affinity.jsonl", **nowhere)
        assert english(result(run)) == []
    run = performed(Fake(every=0.1), scenario, tmp_path / "seconds.jsonl", limits=Limits(seconds=0.05))
    assert english(result(run)) == []


@pytest.mark.parametrize("how", ["well", "late", "lost"])
def test_what_failover_says_is_chinese(how: str, tmp_path: Path) -> None:
    fake = Fake(every=0.0)

    def kill(backend: object) -> None:
        if how == "well":
            fake.dead.add(VICTIM)
            return
        fake.fault, fake.when = "500", lambda body, session: fake.home(session) == VICTIM
        if how == "late":
            threading.Timer(0.3, lambda: (setattr(fake, "fault", ""), fake.dead.add(VICTIM))).start()

    scenario = scenarios.Failover(backend="69/1", rate=20, before=0.3, after=1.5, tokens=2)
    run = performed(fake, scenario, tmp_path / "run.jsonl", eyes=Eyes(kill=kill), limits=Limits(errors=1000))
    assert english(result(run)) == []


def test_what_arms_and_the_cross_check_say_is_chinese(tmp_path: Path) -> None:
    fake = Fake()
    order = ab.rounds([peer.id for peer in fake.peers], (3, 4, 5), 2, seed=1)
    runs = [
        performed(
            fake,
            Round(arms, (3, 4, 5), n, len(order), tokens=8, lengths=(600,), times=1, in_force=4, experiment="x"),
            tmp_path / f"{n}.jsonl",
            eyes=Eyes(lambda: 0, lambda: 5, counters()),
        )
        for n, arms in enumerate(order, 1)
    ]
    assert english(ab_result.analysis(runs)) == []
    assert english(ab_result.analysis(runs[:2])) == []
    for times in (2, 6):
        rival = {"tok/s": 400.0, "TPOT": 0.001, "E2E": 0.02, "TTFT": 0.01}
        check = CrossCheck(backend="69/1", users=2, requests=4, tokens=8, times=times)
        run = performed(Fake(), check, tmp_path / f"cross{times}.jsonl", eyes=Eyes(rival=lambda prompts: rival))  # noqa: B023
        assert english(result(run)) == []
