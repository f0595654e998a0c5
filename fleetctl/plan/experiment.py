"""The mark that `bench ab` leaves on machines before it changes anything there, and what `status` says of it. Pure.

The state before is the release in force: every instance is as it wants before the first mark is written. Back is
`rollout --resume`, whose last step takes the mark away, whoever types it (docs/decisions/bench-ab.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Experiment:
    """What a `bench ab` does to a fleet. `when` is RFC 3339; `run` the lock's; `release` the one to be back at."""

    run: str
    when: str
    who: str
    arms: tuple[int, ...]
    instances: tuple[str, ...]
    release: int

    @property
    def document(self) -> dict[str, Any]:
        return {"schema": 1, **self.__dict__, "arms": list(self.arms), "instances": list(self.instances)}

    def text(self) -> str:
        """What the machines keep, byte for byte."""
        return json.dumps(self.document, indent=1) + "\n"


def left(marks: Mapping[int, Mapping[str, Any] | None], running: Iterable[str] = ()) -> dict[str, Any] | None:
    """The newest mark of all machines with those that have one, for `status`; None when there is none.

    `running`: the runs whose owner holds the lock now. A mark that was damaged is one too: that is all it has to say.
    """
    found = {machine: mark for machine, mark in marks.items() if mark is not None}
    if not found:
        return None
    newest = max(found.values(), key=lambda mark: str(mark.get("when", "")))
    return {
        "who": str(newest.get("who", "somebody")),
        "when": newest.get("when"),
        "arms": list(newest.get("arms") or ()),
        "release": newest.get("release"),
        "machines": list(found),
        "running": newest.get("run") in set(running),
    }


def words(seen: Mapping[str, Any]) -> str:
    """One line of `status`."""
    arms = ", ".join(map(str, seen["arms"])) or "unknown"
    machines = ", ".join(map(str, seen["machines"]))
    what = f"bench ab (mtp {arms}) of {seen['who']}, {seen['when'] or 'some time ago'}, on {machines}"
    if seen["running"]:
        return f"{what}, is under way: instances run with other speculative tokens than the release"
    before = "the release in force" if seen["release"] is None else f"release {seen['release']}"
    return f"{what}, was left half way: fleetctl bench ab --restore puts {before} back"
