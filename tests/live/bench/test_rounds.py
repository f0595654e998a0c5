"""Rounds of `bench ab` and the cross-check against the fake server: whole runs, small; counts and order."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleetctl.bench import ab, ab_result, cross
from fleetctl.bench.perform import Eyes
from fleetctl.bench.results import result
from fleetctl.bench.rounds import CrossCheck, Round
from fleetctl.bench.samples import Run
from fleetctl.errors import CommandError, UsageError
from tests.unit.bench.fake import KEY, Fake, performed

ARMS = (3, 4, 5)


def rounds_of(fake: Fake, passes: int, **changes: Any) -> list[Round]:
    order = ab.rounds([peer.id for peer in fake.peers], ARMS, passes, seed=1)
    known = {"tokens": 8, "lengths": (600,), "times": 2, "in_force": 4, "experiment": "0123abcd", **changes}
    return [Round(arms, ARMS, number, len(order), **known) for number, arms in enumerate(order, 1)]


def quiet(run: Run) -> Run:
    """A loaded test box may mark its client as late, and rightly."""
    if run.end is not None:
        run.end["self_check"]["reasons"] = []
    return run


def test_every_instance_is_asked_the_same_number_of_everything_and_answers_itself(tmp_path: Path) -> None:
    fake = Fake()
    run = quiet(performed(fake, rounds_of(fake, 1)[0], tmp_path / "round1.jsonl"))
    asked = Counter((sample.cell, sample.backend) for sample in run.measured)
    assert {cell for cell, _ in asked} == {"S0", "S1 stream", "S1 whole", "S5", "TTFT 600"}
    assert set(asked.values()) == {2}
    assert len(asked) == 5 * 4
    assert all(sample.home == sample.backend for sample in run.measured)
    assert [sample.stream for sample in run.of("S1 whole")] == [False] * 8
    assert result(run).verdict == "ok"
    assert KEY not in (tmp_path / "round1.jsonl").read_text()


def test_all_instances_get_the_same_texts_in_every_round_and_no_prompt_twice(tmp_path: Path) -> None:
    fake = Fake()
    texts = []
    for number, one in enumerate(rounds_of(fake, 1)[:2]):
        fake.asked.clear()
        performed(fake, one, tmp_path / f"{number}.jsonl")
        texts.append([body["messages"][0]["content"] for _, body in fake.asked])
    together = [text for own in texts for text in own]
    assert len(set(together)) == len(together), "a mark in front that no other has"

    def bodies(own: list[str]) -> Counter[str]:
        # The two that calibrate come first, and are nobody's.
        return Counter(text.partition("] ")[2] for text in own[2:])

    assert bodies(texts[0]) == bodies(texts[1])
    assert all(count % len(fake.peers) == 0 for count in bodies(texts[0]).values())


def test_rounds_are_read_back_and_compared_together(tmp_path: Path) -> None:
    fake = Fake()
    runs = [
        quiet(performed(fake, one, tmp_path / f"{one.number}.jsonl")) for one in rounds_of(fake, 2, lengths=(), times=1)
    ]
    found = ab_result.analysis(runs)
    assert found.partial is None
    assert {row[8] for row in found.tables[0].rows} == {8}, "four instances, two passes"
    assert len(found.tables[0].rows) == 4 * 3


def test_after_a_round_ctrl_c_is_again_what_it_was(tmp_path: Path) -> None:
    """The loop keeps its handler when it is closed: instances that change next could not be interrupted."""
    before = signal.getsignal(signal.SIGINT)
    fake = Fake()
    performed(fake, rounds_of(fake, 1, lengths=(), times=1)[0], tmp_path / "run.jsonl")
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_prompt_that_does_not_fit_is_said_before_anything_is_changed() -> None:
    fake = Fake()
    with pytest.raises(UsageError, match="does not fit"):
        rounds_of(fake, 1, lengths=(300_000,))[0].settled(fake.target())


def a_cross_check(tmp_path: Path, theirs: float, rounds: int = 6) -> tuple[Run, list[Sequence[str]]]:
    asked: list[Sequence[str]] = []

    def rival(prompts: Sequence[str]) -> dict[str, float]:
        asked.append(prompts)
        return {"tok/s": theirs, "TPOT": 0.001, "E2E": 0.02, "TTFT": 0.01}

    check = CrossCheck(backend="69/1", users=2, requests=4, tokens=8, times=rounds)
    return quiet(performed(Fake(), check, tmp_path / "run.jsonl", eyes=Eyes(rival=rival))), asked


def test_the_two_clients_take_turns_with_the_same_questions(tmp_path: Path) -> None:
    run, asked = a_cross_check(tmp_path, 400.0)
    assert len(asked) == 6
    assert {len(prompts) for prompts in asked} == {4}
    order = [event["what"] for event in run.events if event["what"] in ("cell", "vllm")]
    assert order == ["cell", "vllm", "vllm", "cell"] * 3
    assert {sample.backend for sample in run.measured} == {"10.0.0.69:8001"}
    assert len(cross.agreement(run)) == 4
    assert {row[-1] for row in result(run).tables[0].rows} == {6}


def test_ctrl_c_does_not_wait_for_the_rival(tmp_path: Path) -> None:
    """It takes half an hour at worst, and a second Ctrl-C would leave no last line."""
    asked, over, ended = threading.Event(), threading.Event(), threading.Event()

    def rival(prompts: Sequence[str]) -> dict[str, float]:
        asked.set()
        over.wait(20)
        ended.set()
        return {}

    def interrupt() -> None:
        asked.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    check = CrossCheck(backend="69/1", users=1, requests=2, tokens=4, times=2)
    try:
        run = performed(Fake(), check, tmp_path / "run.jsonl", eyes=Eyes(rival=rival))
        assert not ended.is_set()
    finally:
        over.set()
    assert run.partial == "interrupted"
    assert len(run.measured) == 2


def test_a_rival_that_cannot_measure_ends_the_run_in_order(tmp_path: Path) -> None:
    def rival(prompts: Sequence[str]) -> dict[str, float]:
        raise CommandError("`vllm bench serve`: no such tokenizer")

    path = tmp_path / "run.jsonl"
    check = CrossCheck(backend="69/1", users=1, requests=2, tokens=4, times=2)
    with pytest.raises(CommandError, match="no such tokenizer"):
        performed(Fake(), check, path, eyes=Eyes(rival=rival))
    assert '"reason":"`vllm bench serve`: no such tokenizer"' in path.read_text()
