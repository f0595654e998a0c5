"""What fleetctl has written on machines and others have been at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetctl.observe import observe, records
from fleetctl.observe.facts import Stopped
from fleetctl.plan import experiment, release

GOOD: dict[str, Any] = {
    "number": 3,
    "outcome": "good",
    "back_to": None,
    "overrides": {"tokens": 5, "image": None, "engine": {"seed": None}},
    "whole": {"tokens": 5, "image": "i:1", "engine": {}},
}
WRONG: dict[str, list[Any]] = {
    "number": ["x", None, True, -1, 1.5],
    "overrides": [5, [], "x", {"tokens": "2"}, {"image": 5}, {"engine": [1]}, {"env": []}, {"settings": {"a": None}}],
    "whole": [5, [], {"tokens": 1.5}, {"image": []}, {"engine": "x"}, {"env": {"A": 1}}, {"settings": "x"}],
    "left_out": [None, 67, "67", ["67"], [True]],
    "back_to": ["1", [], True],
    **{word: [5, None] for word in ("when", "who", "command", "outcome")},
}
BROKEN: list[Any] = [
    *([1, 2], "x", 5, None, True, {}),
    *({**GOOD, key: value} for key, values in WRONG.items() for value in values),
]


@pytest.mark.parametrize("document", [*BROKEN, "half a fi"])
def test_what_has_another_form_than_a_release_is_none_and_is_told(document: Any) -> None:
    text = document if document == "half a fi" else json.dumps(document)
    assert release.parse(document) is None
    kept = f"==> /s/00001.json <==\n{text}\n==> /s/00002.json <==\n{json.dumps(GOOD)}\n\n==> /dev/null <==\n"
    facts = observe.parse(69, f"@@fleetctl release\n{text}\n@@fleetctl releases\n{kept}\n")
    assert facts.release is None
    assert "release" in facts.failed
    assert facts.releases == (GOOD,), "half a file does not take the next one with it"
    assert list(facts.broken_releases) == ["/s/00001.json"]


def test_why_a_file_is_no_release_is_said() -> None:
    assert records.wrong(json.dumps(GOOD)) is None
    assert records.wrong(json.dumps(GOOD)[:40]) == "it is no JSON, or half of it"
    assert records.wrong("\n") == "it is empty"
    assert records.wrong("{}") == "it has another form than a release"
    assert observe.releases("\n==> /dev/null <==\n") == ((), {})


def test_a_release_is_read_and_a_machine_without_one_has_not_lost_it() -> None:
    facts = observe.parse(69, f"@@fleetctl release\n{json.dumps(GOOD)}\n")
    assert (facts.release, facts.failed) == (GOOD, {})
    assert observe.parse(69, "").failed == {}


@pytest.mark.parametrize(
    "document",
    [
        *([1, 2], "x", 5, None, {"arms": 5}, {"arms": ["x", {}]}, {"arms": {"a": 1}}),
        {"run": [1], "when": 5, "who": {}, "release": "x", "arms": None},
    ],
)
def test_a_damaged_mark_of_an_experiment_is_one_still(document: Any) -> None:
    facts = observe.parse(69, f"@@fleetctl experiment\n{json.dumps(document)}\n")
    assert facts.experiment == {}
    left = experiment.left({69: facts.experiment}, ["aaaa0000"])
    assert left is not None
    said = experiment.words(left)
    assert said.startswith("bench ab (mtp unknown) of somebody, some time ago, on 69, was left half way")
    assert said.endswith("puts the release in force back")


def test_a_damaged_mark_of_an_instance_counts_and_says_nothing() -> None:
    for text in ("[1]", "5", '{"who": 5, "when": [], "reason": {}}', "", "{"):
        assert observe.marked(f"stopped/a\t{text}") == {"stopped": {"a": Stopped("unknown", "", "")}}
    assert records.mark('{"who": "ops", "reason": 5}') == Stopped("ops", "", "")
