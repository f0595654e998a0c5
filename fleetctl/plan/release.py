"""A release: one recorded desired state that was rolled out (design, promise 3). Kept on every machine, newest wins.

What it asked for is kept twice: as overrides of the inventory, which is how it is in force, and as a whole, so that it
can be gone back to when the inventory has moved on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetctl.fleet.fleet import Fleet, Overrides, canonical
from fleetctl.observe.records import is_release


@dataclass(frozen=True)
class Whole:
    """What every engine runs with: tokens, image, flags by canonical name."""

    tokens: int | None = None
    image: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Release:
    """`when` is RFC 3339; `outcome` is running or good; `back_to` the release that a rollback goes back to."""

    number: int
    overrides: Overrides
    when: str
    who: str
    command: str
    outcome: str
    whole: Whole | None = None
    back_to: int | None = None

    @property
    def document(self) -> dict[str, Any]:
        overrides = {"tokens": self.overrides.tokens, "image": self.overrides.image}
        whole = self.whole
        return {
            "schema": 1,
            "number": self.number,
            "overrides": {**overrides, "engine": dict(self.overrides.engine)},
            "when": self.when,
            "who": self.who,
            "command": self.command,
            "outcome": self.outcome,
            "back_to": self.back_to,
            "whole": {"tokens": whole.tokens, "image": whole.image, "engine": dict(whole.engine)} if whole else None,
        }

    def text(self) -> str:
        """What the machines keep, byte for byte."""
        return json.dumps(self.document, indent=1) + "\n"


def parse(document: Any) -> Release | None:
    """A release of its JSON; None for anything that is not one."""
    if not is_release(document):
        return None
    given = document.get("overrides") or {}
    overrides = Overrides(given.get("tokens"), given.get("image"), tuple(sorted((given.get("engine") or {}).items())))
    words = {key: str(document.get(key, "")) for key in ("when", "who", "command", "outcome")}
    seen = document.get("whole")
    whole = Whole(seen.get("tokens"), seen.get("image"), seen.get("engine") or {}) if seen is not None else None
    return Release(document["number"], overrides, **words, whole=whole, back_to=document.get("back_to"))


def newest(documents: Iterable[Any]) -> Release | None:
    """The release in force: the highest number that any machine knows; good only if all that know it say so."""
    found = [release for document in documents if (release := parse(document)) is not None]
    top = max(found, key=lambda release: release.number, default=None)
    halves = [release for release in found if top and release.number == top.number and release.outcome != "good"]
    return halves[0] if halves else top


def highest(documents: Iterable[Any]) -> int:
    """The highest number that any release has had, 0 without any: the next one is above it, whatever became of that."""
    return max((release.number for document in documents if (release := parse(document)) is not None), default=0)


def proved(documents: Iterable[Any]) -> dict[int, Release]:
    """Releases that were recorded as good, by number, oldest first: the only ones to go back to."""
    found = [release for document in documents if (release := parse(document)) is not None]
    good = {one.number: one for one in found if one.outcome == "good" and one.whole is not None}
    return dict(sorted(good.items()))


def last_good(good: Mapping[int, Release], current: Release | None) -> Release | None:
    """The newest proven release that asks for something else than the one in force, or than one that is half done.

    A way back that was cut short still leads where it led: the release that was left is newer, and proved good once.
    """
    if current is None:
        return None
    if current.outcome != "good" and current.back_to is not None and current.back_to in good:
        return good[current.back_to]
    earlier = [one for number, one in good.items() if number < current.number and one.whole != current.whole]
    return earlier[-1] if earlier else None


def undone_by(good: Mapping[int, Release], current: Release | None) -> Release | None:
    """Where a rollout that failed goes back to by itself; None when it brought nothing new, or was a way back.

    A release that proved good once and is rolled out again, to a machine that was dead or with another environment, is
    what the rest of the fleet runs: there is nothing of this rollout to undo.
    """
    if current is None or current.outcome == "good" or current.number in good or current.back_to is not None:
        return None
    return last_good(good, current)


def whole(fleet: Fleet) -> Whole:
    return Whole(fleet.tokens, fleet.image, fleet.engine)


def going_back(fleet: Fleet, target: Whole) -> Overrides:
    """The overrides that make the inventory as it is now ask for what `target` asked for. None leaves a flag out."""
    inventory = {canonical(name): value for name, value in fleet.inventory.engine.items()}
    names = sorted(inventory.keys() | target.engine.keys())
    engine = tuple((name, target.engine.get(name)) for name in names if inventory.get(name) != target.engine.get(name))
    # No override is what the inventory says; 0 is none of it.
    tokens = 0 if target.tokens is None and fleet.inventory.speculative is not None else target.tokens
    return needed(fleet, Overrides(tokens, target.image, engine))


def puts_right(current: Any) -> str:
    """The command that brings the fleet back to what it is meant to be: never another release than the one in force."""
    return "fleetctl rollout --resume" if current else "fleetctl rollout"


def ahead(fleet: Fleet, current: Release) -> bool:
    """Whether the inventory as it stands asks for something else than this release."""
    return bool(going_back(fleet, current.whole) if current.whole else needed(fleet, current.overrides))


def needed(fleet: Fleet, overrides: Overrides) -> Overrides:
    """Only what differs from the inventory: `--mtp 4` over an inventory that says 4 overrides nothing."""
    inventory = fleet.inventory
    own = inventory.speculative.tokens if inventory.speculative else None
    engine = {canonical(name): value for name, value in inventory.engine.items()}
    return Overrides(
        tokens=None if overrides.tokens == own else overrides.tokens,
        image=None if overrides.image == inventory.image.reference else overrides.image,
        engine=tuple((k, v) for k, v in overrides.engine if engine.get(k) != v),
    )


def words(overrides: Overrides) -> str:
    """`mtp 5, engine.max-num-seqs 16`, for people."""
    parts = [f"mtp {overrides.tokens}"] if overrides.tokens is not None else []
    parts += [f"image {overrides.image}"] if overrides.image else []
    parts += [f"engine.{key} {'left out' if value is None else value}" for key, value in overrides.engine]
    return ", ".join(parts) or "the inventory as it stands"
