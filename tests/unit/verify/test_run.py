"""The rounds of questions when somebody does not answer in time; what is asked and judged is in the other files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleetctl.errors import CommandError
from fleetctl.fleet.fleet import Fleet
from fleetctl.remote.connection import Result
from fleetctl.verify import behaviour, judge, run
from fleetctl.verify.check import Check, Status, Where
from tests.unit.conftest import KEY
from tests.unit.verify.world import World

LATE = "a command on this computer did not end within 110 s"


class Here:
    """This computer: every request is a 200 with `body`, until the call numbered `late`."""

    def __init__(self, late: int | None = None, body: str = "{}", http: int = 200) -> None:
        self.late, self.body, self.http, self.asked = late, body, http, 0

    def run(self, script: str, *, stdin: bytes = b"", timeout: float) -> Result:
        self.asked += 1
        if self.asked == self.late:
            raise CommandError(LATE)
        count = stdin.decode().count("write-out")
        parts = [f"==> m.{n}.body <==\n{self.body}\n" for n in range(count)]
        reports = "".join(f"=done {n} {self.http} 0 0.1 \n" for n in range(count))
        return Result(0, "\n".join([*parts, f"==> m.http <==\n{reports}"]), "", 0.1)

    def has(self, program: str) -> bool:
        return True


def outside(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, here: Here) -> list[Check]:
    """The checks through public_url, all others well."""
    balancer = fleet.inventory.balancer.model_copy(update={"public_url": "http://models.example:2219"})
    open_fleet = Fleet(fleet.inventory.model_copy(update={"balancer": balancer}), fleet.path)
    evidence = World(open_fleet, public=False).evidence()
    evidence.no_outside = None
    evidence.homes = {peer.id: ("a", "b", "c", "d") for peer in evidence.peers}
    monkeypatch.setattr(run, "here", here)
    monkeypatch.setattr(run.randomness, "token_hex", lambda length: "m")
    session: Any = None
    run._Rounds(session, evidence, "00ff00ff")._outside(())
    return [check for check in judge.everything(evidence) if check.where is Where.OUTSIDE]


@pytest.mark.parametrize("late", [1, 2])
def test_a_gateway_that_swallows_requests_is_one_red_line_and_all_else_is_still_said(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    (found,) = outside(fleet, monkeypatch, Here(late))
    assert (found.id, found.status) == ("answers", Status.FAIL)
    assert LATE in found.seen


def test_a_gateway_that_does_not_answer_is_asked_nothing_else(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(http=0)
    (found,) = outside(fleet, monkeypatch, here)
    assert (found.id, found.status) == ("answers", Status.FAIL)
    assert here.asked == 1


@pytest.mark.parametrize("cut", [20, 10])
def test_a_key_that_a_server_repeats_is_in_no_message_not_even_its_beginning(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """A message shows sixty characters of a body, and what is left of a key at their end is most of it."""
    here = Here(http=500, body=f"{'x' * (60 - cut)}{KEY}")
    said = "\n".join(check.seen for check in outside(fleet, monkeypatch, here))
    assert "500" in said
    assert KEY[:8] not in said


def test_two_backends_are_not_asked_more_than_they_take_at_once(fleet: Fleet) -> None:
    """The balancer would send what is too much past its home, and the check of routing would call that wrong."""
    evidence = World(fleet).evidence()
    session: Any = None
    assert run._Rounds(session, evidence, "00ff00ff")._at_once() == min(run.MOST, run.AT_ONCE * len(evidence.peers))
    evidence.peers = evidence.peers[:2]
    assert run._Rounds(session, evidence, "00ff00ff")._at_once() == 2 * run.AT_ONCE


@pytest.mark.parametrize(("bundled", "looks"), [(0, 1), (1, 2), (9, run.STREAM_LOOKS)])
def test_streams_are_looked_at_again_when_chunks_came_bundled(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, bundled: int, looks: int
) -> None:
    """A computer that stood still for a moment bundles once; what buffers does so every time."""
    seen: list[Status] = []

    def spread(*_: object) -> Check:
        seen.append(Status.FAIL if len(seen) < bundled else Status.PASS)
        return Check("spread", Where.BALANCER, seen[-1], "", "")

    session: Any = None
    rounds = run._Rounds(session, World(fleet).evidence(), "00ff00ff")
    monkeypatch.setattr(rounds, "_stream_jobs", lambda out: [])
    monkeypatch.setattr("fleetctl.verify.behaviour.spread", spread)
    rounds._streams()
    assert len(seen) == looks


def test_of_two_looks_at_a_stream_the_less_bundled_counts_and_a_broken_one_is_not_hidden(fleet: Fleet) -> None:
    evidence = World(fleet).evidence()
    good = next(answer for (_, _, kind), answer in evidence.answers.items() if kind == "stream")
    stood_still = replace(good, times=tuple(0.0 for _ in good.times))
    cut = replace(good, exit=18)
    assert behaviour.calmer(stood_still, good) is good
    assert behaviour.calmer(good, stood_still) is good
    assert behaviour.calmer(good, cut) is cut
