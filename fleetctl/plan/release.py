"""A release: one recorded desired state that was rolled out (design, promise 3). Kept on every machine, newest wins.

What it asked for is kept twice: as overrides of the inventory, which is how it is in force, and as a whole, so that it
can be gone back to when the inventory has moved on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleetctl.fleet.fleet import Fleet, Overrides, canonical
from fleetctl.fleet.schema import looks_secret
from fleetctl.observe.records import is_release

# Names of environment variables whose values a release does not keep.
SECRET_NAME = re.compile(r"(?i)PASSWORD|PASSWD|SECRET|CREDENTIAL|(API|ACCESS)KEY|(^|_)(KEY|TOKEN|PASS|AUTH)$")
LOGIN = re.compile(r"(://|^)[^\s/@]+@|^[^\s/@:]+:[^\s/@]+@")


@dataclass(frozen=True)
class Whole:
    """What every engine runs with: tokens, image, flags by canonical name, environment, settings (fleet.py).

    `env` or `settings` None: an older fleetctl did not record them; they are as the inventory says. So is a variable
    that is None.
    """

    tokens: int | None = None
    image: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str | None] | None = None
    settings: Mapping[str, str] | None = None

    def alike(self, other: Whole) -> bool:
        """Whether both ask for the same, as far as both say it."""
        given = (self.tokens, self.image, self.engine) == (other.tokens, other.image, other.engine)
        pairs = ((self.env, other.env), (self.settings, other.settings))
        return given and all(a is None or b is None or a == b for a, b in pairs)

    @property
    def document(self) -> dict[str, Any]:
        found = {"tokens": self.tokens, "image": self.image, "engine": dict(self.engine)}
        more = {"env": self.env, "settings": self.settings}
        return found | {name: dict(value) for name, value in more.items() if value is not None}


@dataclass(frozen=True)
class Release:
    """`when` is RFC 3339; `outcome` is running or good; `back_to` the release that a rollback goes back to.

    `left_out`: machines of the fleet as it then was that have not proved it (`rollout --machines`): it is a target for
    rollback of all but these. A machine that joins later was not left out.
    """

    number: int
    overrides: Overrides
    when: str
    who: str
    command: str
    outcome: str
    whole: Whole | None = None
    back_to: int | None = None
    left_out: tuple[int, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        own = self.overrides
        overrides: dict[str, Any] = {"tokens": own.tokens, "image": own.image, "engine": dict(own.engine)}
        return {
            "schema": 1,
            "number": self.number,
            "overrides": {**overrides, "env": dict(own.env), "settings": dict(own.settings)},
            "when": self.when,
            "who": self.who,
            "command": self.command,
            "outcome": self.outcome,
            "back_to": self.back_to,
            "left_out": list(self.left_out),
            "whole": self.whole.document if self.whole else None,
        }

    def text(self) -> str:
        """What the machines keep, byte for byte."""
        return json.dumps(self.document, indent=1) + "\n"


def parse(document: Any) -> Release | None:
    """A release of its JSON; None for anything that is not one."""
    if not is_release(document):
        return None
    given = document.get("overrides") or {}
    engine, env, settings = (tuple(sorted((given.get(name) or {}).items())) for name in ("engine", "env", "settings"))
    overrides = Overrides(given.get("tokens"), given.get("image"), engine, env, settings)
    words = {key: str(document.get(key, "")) for key in ("when", "who", "command", "outcome")}
    seen = document.get("whole")
    whole = None
    if seen is not None:
        kept = seen.get("env"), seen.get("settings")
        whole = Whole(seen.get("tokens"), seen.get("image"), seen.get("engine") or {}, *kept)
    back_to, left_out = document.get("back_to"), tuple(document.get("left_out", ()))
    return Release(document["number"], overrides, **words, whole=whole, back_to=back_to, left_out=left_out)


def newest(documents: Iterable[Any]) -> Release | None:
    """The release in force: the highest number that any machine knows; good only if all that know it say so."""
    found = [release for document in documents if (release := parse(document)) is not None]
    top = max(found, key=lambda release: release.number, default=None)
    same = [release for release in found if top and release.number == top.number]
    halves = [release for release in same if release.outcome != "good"]
    return replace((halves or [top])[0], left_out=_in_all(same)) if top else None


def _in_all(same: Iterable[Release]) -> tuple[int, ...]:
    """Machines that every record of a release leaves out: each record knows of those that proved it until then."""
    lists = [release.left_out for release in same]
    return tuple(machine for machine in lists[0] if all(machine in one for one in lists[1:]))


def highest(documents: Iterable[Any]) -> int:
    """The highest number that any release has had, 0 without any: the next one is above it, whatever became of that."""
    return max((release.number for document in documents if (release := parse(document)) is not None), default=0)


def proved(documents: Iterable[Any]) -> dict[int, Release]:
    """Releases that were recorded as good, by number, oldest first: the only ones to go back to."""
    good: dict[int, list[Release]] = {}
    for document in documents:
        release = parse(document)
        if release is not None and release.outcome == "good" and release.whole is not None:
            good.setdefault(release.number, []).append(release)
    return {number: replace(same[-1], left_out=_in_all(same)) for number, same in sorted(good.items())}


def proved_on(good: Mapping[int, Release], machines: Iterable[int]) -> dict[int, Release]:
    """Those of `good` that each of these machines may go back to: they left none of them out."""
    wanted = set(machines)
    return {number: one for number, one in good.items() if not wanted & set(one.left_out)}


def partly(release: Release, machines: Iterable[int]) -> tuple[str, str] | None:
    """`67` and `69,68,66`: who of these machines proved a release, and who was left out; None when all proved it."""
    ids = list(machines)
    out = [machine for machine in ids if machine in release.left_out]
    return (_ids(machine for machine in ids if machine not in out), _ids(out)) if out else None


def shown(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a release as it is printed: of environment variables only the names, as in a plan."""
    named = {
        part: {**document[part], "env": sorted(document[part]["env"])}
        for part in ("overrides", "whole")
        if (document.get(part) or {}).get("env") is not None
    }
    return {**document, **named}


def left_behind(path: object, why: str) -> str:
    """Words about a file that should be a release and is none."""
    return f"{path}: {why}: left out, the other machines' copies count; remove it, or copy theirs"


def _ids(machines: Iterable[int]) -> str:
    return ",".join(map(str, machines))


def back_command(number: int, machines: Iterable[int], everybody: Iterable[int]) -> str:
    """The words of a rollback of these machines of a fleet."""
    ids = list(machines)
    return f"rollback {number}" + ("" if ids == list(everybody) else f" --machines {_ids(ids)}")


def last_good(good: Mapping[int, Release], current: Release | None) -> Release | None:
    """The newest proven release that asks for something else than the one in force, or than one that is half done.

    A way back that was cut short still leads where it led: the release that was left is newer, and proved good once.
    """
    if current is None:
        return None
    if current.outcome != "good" and current.back_to is not None and current.back_to in good:
        return good[current.back_to]
    earlier = [one for number, one in good.items() if number < current.number and not _same(one.whole, current.whole)]
    return earlier[-1] if earlier else None


def _same(one: Whole | None, other: Whole | None) -> bool:
    return one is other or (one is not None and other is not None and one.alike(other))


def undone_by(good: Mapping[int, Release], current: Release | None) -> Release | None:
    """Where a rollout that failed goes back to by itself; None when it brought nothing new, or was a way back.

    A release that proved good once and is rolled out again, to a machine that was dead or with another environment, is
    what the rest of the fleet runs: there is nothing of this rollout to undo.
    """
    if current is None or current.outcome == "good" or current.number in good or current.back_to is not None:
        return None
    return last_good(good, current)


def in_force_without(stay: set[int], good: Mapping[int, Release], current: Release | None) -> Release | None:
    """The release that is in force once others are taken out; None when `current` stays so. `stay`: who serves then.

    A release that left out everybody who stays was tried on those who go: nobody would run it, and it would come to the
    next machine that joins. In force is then what proved good before it, be it on some.
    """
    if current is None or not stay or not stay <= set(current.left_out):
        return None
    before = [one for number, one in good.items() if number < current.number and not stay <= set(one.left_out)]
    if not before or (current.outcome == "good" and _same(before[-1].whole, current.whole)):
        return None
    return before[-1]


def whole(fleet: Fleet) -> Whole:
    return Whole(fleet.tokens, fleet.image, fleet.engine, _kept(fleet.env), fleet.settings)


def _kept(env: Mapping[str, str]) -> dict[str, str | None]:
    """Of an environment what a release keeps; None for the value of what may be a secret.

    Releases are files that everybody on a machine reads. `check` refuses a variable that is clearly a secret; what
    merely may be one (a proxy's login, a password by another name) is copied nowhere: a rollback leaves it as the
    inventory says.
    """

    def may_be_secret(name: str, value: str) -> bool:
        return bool(SECRET_NAME.search(name) or looks_secret(value) or LOGIN.search(value))

    return {name: None if may_be_secret(name, value) else value for name, value in env.items()}


def going_back(fleet: Fleet, target: Whole) -> Overrides:
    """The overrides that make the inventory as it is now ask for what `target` asked for. None leaves a flag out."""
    inventory = {canonical(name): value for name, value in fleet.inventory.engine.items()}
    names = sorted(inventory.keys() | target.engine.keys())
    engine = tuple((name, target.engine.get(name)) for name in names if inventory.get(name) != target.engine.get(name))
    # No override is what the inventory says; 0 is none of it.
    tokens = 0 if target.tokens is None and fleet.inventory.speculative is not None else target.tokens
    own, env = fleet.inventory.instances.env, target.env or {}
    variables = tuple(
        (k, env.get(k)) for k in sorted({*own, *env}) if target.env is not None and env.get(k, "") is not None
    )
    settings = tuple(sorted((target.settings or {}).items()))
    return needed(fleet, Overrides(tokens, target.image, engine, variables, settings))


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
    env, settings = inventory.instances.env, fleet.with_overrides(Overrides()).settings
    return Overrides(
        tokens=None if overrides.tokens == own else overrides.tokens,
        image=None if overrides.image == inventory.image.reference else overrides.image,
        engine=tuple((k, v) for k, v in overrides.engine if engine.get(k) != v),
        env=tuple((k, v) for k, v in overrides.env if env.get(k) != v),
        settings=tuple((k, v) for k, v in overrides.settings if settings.get(k, v) != v),
    )


def words(overrides: Overrides) -> str:
    """`mtp 5, engine.max-num-seqs 16`, for people; of environment variables only the names."""
    parts = [f"mtp {overrides.tokens}"] if overrides.tokens is not None else []
    parts += [f"image {overrides.image}"] if overrides.image else []
    parts += [f"engine.{key} {'left out' if value is None else value}" for key, value in overrides.engine]
    parts += [f"env.{key} {'left out' if value is None else 'as it was'}" for key, value in overrides.env]
    parts += [f"{key} {value}" for key, value in overrides.settings]
    return ", ".join(parts) or "the inventory as it stands"
