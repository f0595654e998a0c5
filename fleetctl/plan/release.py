"""A release: one recorded desired state that was rolled out (design, promise 3). Kept on every machine, newest wins."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetctl.fleet.fleet import Fleet, Overrides


@dataclass(frozen=True)
class Release:
    """`when` is RFC 3339; `outcome` is running, good or failed."""

    number: int
    overrides: Overrides
    when: str
    who: str
    command: str
    outcome: str

    def text(self) -> str:
        """What the machines keep, byte for byte."""
        overrides: dict[str, Any] = {"tokens": self.overrides.tokens, "image": self.overrides.image}
        overrides["engine"] = dict(self.overrides.engine)
        document = {
            "schema": 1,
            "number": self.number,
            "overrides": overrides,
            "when": self.when,
            "who": self.who,
        }
        return json.dumps({**document, "command": self.command, "outcome": self.outcome}, indent=1) + "\n"


def parse(document: Any) -> Release | None:
    """A release of its JSON; None for anything that is not one."""
    if not isinstance(document, dict) or not isinstance(document.get("number"), int):
        return None
    given = document.get("overrides") or {}
    overrides = Overrides(given.get("tokens"), given.get("image"), tuple(sorted((given.get("engine") or {}).items())))
    words = {key: str(document.get(key, "")) for key in ("when", "who", "command", "outcome")}
    return Release(document["number"], overrides, **words)


def newest(documents: Iterable[Any]) -> Release | None:
    """The release in force: the highest number that any machine knows; good only if all that know it say so."""
    found = [release for document in documents if (release := parse(document)) is not None]
    top = max(found, key=lambda release: release.number, default=None)
    halves = [release for release in found if top and release.number == top.number and release.outcome != "good"]
    return halves[0] if halves else top


def needed(fleet: Fleet, overrides: Overrides) -> Overrides:
    """Only what differs from the inventory: `--mtp 4` over an inventory that says 4 overrides nothing."""
    inventory = fleet.inventory
    own = inventory.speculative.tokens if inventory.speculative else None
    return Overrides(
        tokens=None if overrides.tokens == own else overrides.tokens,
        image=None if overrides.image == inventory.image.reference else overrides.image,
        engine=tuple((k, v) for k, v in overrides.engine if inventory.engine.get(k) != v),
    )


def words(overrides: Overrides) -> str:
    """`mtp 5, engine.max-num-seqs 16`, for people."""
    parts = [f"mtp {overrides.tokens}"] if overrides.tokens is not None else []
    parts += [f"image {overrides.image}"] if overrides.image else []
    parts += [f"engine.{key} {value}" for key, value in overrides.engine]
    return ", ".join(parts) or "the inventory as it stands"
