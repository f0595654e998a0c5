"""Two languages that say the same things."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from fleetctl.balancer.routing import Affinity
from fleetctl.bench import results, scenarios
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan import history
from fleetctl.plan.status import IN_TABLE
from fleetctl.report import words_en, words_zh
from fleetctl.report.words import TABLES, Words
from fleetctl.verify import judge
from tests.unit.bench.build import run
from tests.unit.verify.world import World

SOURCES = Path(words_en.__file__).parent
CALL = re.compile(r"""words(?:\.get)?\(\s*f?["']([^"']+)["']""")
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def used() -> set[str]:
    """Keys in the sources; those that are put together end at their first brace."""
    texts = [path.read_text() for path in SOURCES.glob("*.py")]
    return {match for text in texts for match in CALL.findall(text)}


def test_both_languages_have_all_keys() -> None:
    assert words_en.WORDS.keys() == words_zh.WORDS.keys()


def test_both_languages_fill_in_the_same_values() -> None:
    def fields(text: str) -> set[str | None]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}

    assert {key for key in words_en.WORDS if fields(words_en.WORDS[key]) != fields(words_zh.WORDS[key])} == set()


def test_every_key_that_the_report_uses_exists() -> None:
    plain = {key for key in used() if "{" not in key}
    assert plain - words_en.WORDS.keys() == set()
    begun = {key.partition("{")[0] for key in used() if "{" in key}
    assert {head for head in begun if not any(key.startswith(head) for key in words_en.WORDS)} == set()


def test_no_english_sentence_stands_in_the_chinese_table_and_no_chinese_in_the_english_one() -> None:
    assert [key for key, text in words_en.WORDS.items() if CHINESE.search(text)] == []
    long = re.compile(r"[A-Za-z]{2,}(?: [a-z]{2,}){3,}")
    assert [key for key, text in words_zh.WORDS.items() if long.search(text.replace("fleetctl", ""))] == []


@pytest.mark.parametrize("language", TABLES)
def test_there_are_words_for_every_state_check_scenario_and_outcome(fleet: Fleet, language: str) -> None:
    table = TABLES[language]
    wanted = {f"check.{check.id}" for check in judge.everything(World(fleet).evidence())}
    wanted |= {f"scenario.{name}" for name in scenarios.ALL}
    wanted |= {f"outcome.{word}" for word in (*history.ORDER, history.UNKNOWN)}
    wanted |= {f"table.{word}" for word in (*IN_TABLE.values(), "absent")}
    wanted |= {f"affinity.{one.value}{more}" for one in Affinity for more in ("", ".short")}
    wanted |= {f"fleet.{word}" for word in ("ok", "warn", "critical", "unknown")}
    assert wanted - table.keys() == set()


def test_what_verify_and_bench_say_of_a_fleet_that_is_well_is_chinese_in_chinese(fleet: Fleet) -> None:
    words = Words("zh")
    found = results.result(run())
    said = [text for check in found.checks for text in (check.what, check.expected, check.seen, check.bound) if text]
    said += [table.title for table in found.tables] + found.notes
    assert [text for text in said if words.said(text) == text and re.search("[a-z]{3}", text)] == []


def test_what_there_is_no_phrase_for_is_quoted_as_it_is() -> None:
    assert Words("zh").said("the roof is on fire") == "the roof is on fire"
    assert Words("en").said("none failed") == "none failed"
