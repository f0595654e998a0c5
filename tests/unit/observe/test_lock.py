"""What the lock's machine says, as values."""

from __future__ import annotations

import pytest

from fleetctl.commands.fleet_lock import STALE
from fleetctl.observe import lock
from fleetctl.observe.lock import LockState

HELD = """answer=held
now=120050
token=abc
taken=100000
beat=119750
since=2026-08-29T03:00:00Z
owner=ops
host=laptop
pid=4242
kernel=boot pid:[1]
started=99
command=rollout --set engine.x=a=b
"""


def test_a_holder_with_everything_that_is_known_of_it() -> None:
    state = lock.parse(HELD)
    assert state.answer == "held"
    assert state.holder is not None
    assert state.holder.command == "rollout --set engine.x=a=b"
    assert (state.holder.held, state.holder.heartbeat) == (200.5, 3.0)
    assert not state.holder.stale
    assert str(state.holder) == (
        "ops@laptop (pid 4242) since 2026-08-29T03:00:00Z, 3 min 20 s ago, for "
        "`fleetctl rollout --set engine.x=a=b`; last heartbeat 3 s ago"
    )


def test_without_a_token_nobody_holds_it() -> None:
    assert lock.parse("answer=shown\nnow=100\n\n") == LockState("shown")
    assert lock.parse("answer=shown\nnow=300\nfreed=100\nbroken=ops@desk\n") == LockState(
        "shown", None, 2.0, "ops@desk"
    )
    assert lock.parse("") == LockState("")


def test_a_holder_that_says_little_of_itself_is_still_one() -> None:
    state = lock.parse("now=x\ntoken=abc\npid=?\n")
    assert state.holder is not None
    assert (state.holder.who, state.holder.process.pid, state.holder.heartbeat) == ("unknown@unknown", 0, 0.0)


@pytest.mark.parametrize(("age", "stale"), [(0, False), (STALE, False), (STALE + 0.01, True), (-0.01, True)])
def test_stale_is_what_the_script_takes_over(age: float, stale: bool) -> None:
    state = lock.parse(f"now={100_000 + round(age * 100)}\ntoken=a\nbeat=100000\n")
    assert state.holder is not None
    assert state.holder.stale is stale


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (130, "2 min 10 s"), (3900, "1 h 5 min")]
)
def test_durations_for_people(seconds: float, words: str) -> None:
    assert lock.duration(seconds) == words
