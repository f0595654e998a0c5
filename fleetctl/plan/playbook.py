"""Playbooks: the ordered steps of one command, as people read them in playbooks/*.yaml (docs/playbooks.md).

A copy beside the inventory is used instead of the shipped one. It may leave steps out (each named in `drop:`), add
`run:` steps, and hooks before and after a stage; whatever makes no sense is said at once, with file, line and column.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl import resources
from fleetctl.errors import UsageError
from fleetctl.fleet import document as yaml_document
from fleetctl.fleet.document import Document, Location, Mistake
from fleetctl.fleet.excerpt import masked, render
from fleetctl.fleet.nearest import nearest
from fleetctl.plan import playbook_rules as rules

ORDERS = {"side by side": True, "one by one": False}
WHERE = ("machines", "balancer", "source")
DOCUMENT_KEYS = ("description", "drop", "stages")
STAGE_KEYS = ("name", "machines", "before", "steps", "after")
RUN_KEYS = ("run", "file", "name", "on", "timeout")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
SECONDS, LONGEST = 300, 86_400
LARGEST = 1 << 20  # bytes of a file


@dataclass(frozen=True)
class RunStep:
    """A step or hook of the user's own. `shown` is its line or the name of its file, without what looks like a secret.

    `on`: machines (each of the stage), balancer or source. It ends after `timeout` seconds at the latest.
    """

    name: str
    shown: str
    program: bytes
    on: str = "machines"
    timeout: int = SECONDS


@dataclass(frozen=True)
class Stage:
    """Steps done on every machine; `parallel` over the machines, or one machine after the other.

    `before` and `after` are hooks around the whole stage.
    """

    name: str
    parallel: bool
    steps: tuple[str | RunStep, ...]
    before: tuple[RunStep, ...] = ()
    after: tuple[RunStep, ...] = ()


@dataclass(frozen=True)
class Playbook:
    """`left_out`: what the user's copy drops, in words for the plan."""

    name: str
    stages: tuple[Stage, ...]
    left_out: tuple[str, ...] = ()


def load(name: str, known: set[str], beside: Path | None = None) -> Playbook:
    """Read `playbooks/NAME.yaml`. Raises UsageError with every mistake in it, each with its place."""
    path = resources.find("playbooks", f"{name}.yaml", beside)
    shipped = resources.find("playbooks", f"{name}.yaml")
    if beside is not None:
        _refuse_unknown(beside / "playbooks", {file.name for file in shipped.parent.glob("*.yaml")})
    if path == shipped:
        return _Reader(path, known, beside).playbook(name, None)
    steps = [s for stage in _Reader(shipped, known, None).playbook(name, None).stages for s in stage.steps]
    return _Reader(path, known, beside).playbook(name, [step for step in steps if isinstance(step, str)])


def _refuse_unknown(folder: Path, known: set[str]) -> None:
    """A file that no command reads, such as rolout.yaml, is a slip. Raises UsageError."""
    for file in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        if file.name not in known:
            near = nearest(file.name, known) or ", ".join(sorted(known))
            raise UsageError(f"{file}: no command has this playbook; it has to be {near}", state="nothing was changed")


class _Reader:
    """One file; collects mistakes and raises them all at the end."""

    def __init__(self, path: Path, known: set[str], beside: Path | None) -> None:
        self.path = path
        self.known = known
        self.beside = beside
        self.document: Document = yaml_document.read(path)
        self.mistakes: list[Mistake] = list(self.document.mistakes)
        self.names: dict[str, Location] = {}

    def playbook(self, name: str, shipped: Sequence[str] | None) -> Playbook:
        """`shipped`: the steps of the shipped playbook that this one stands in for."""
        self._raise()
        value = self.document.value
        entries: Any = value.get("stages") if isinstance(value, dict) else None
        if not isinstance(entries, list) or not entries:
            self.mistakes.append(Mistake(None, "a playbook has a list of stages"))
            self._raise()
        self._keys(value, (), DOCUMENT_KEYS, "a playbook")
        stages = [self._stage(entry, ("stages", place)) for place, entry in enumerate(entries)]
        self._twice((stage.name, ("stages", place)) for place, stage in enumerate(stages) if stage and stage.name)
        dropped = self._dropped(value.get("drop", []), shipped)
        self._raise()
        whole = tuple(stage for stage in stages if stage is not None)
        placed = [
            rules.Placed(step, number, stage.parallel, ("stages", number, "steps", index))
            for number, stage in enumerate(whole)
            for index, step in enumerate(stage.steps)
            if isinstance(step, str)
        ]
        for location, words in rules.order(placed):
            self._say(location, words)
        if shipped is not None:
            for words in rules.missing(shipped, {one.step for one in placed}, dropped):
                self._say(("stages",), words)
        self._raise()
        left_out = tuple(f"{step} is left out by {self._shown}: {rules.left_out(step)}" for step in dropped)
        return Playbook(name, whole, left_out)

    @property
    def _shown(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    def _raise(self) -> None:
        if self.mistakes:
            listed = render(str(self.path), self.document, self.mistakes)
            raise UsageError(
                "\n".join(listed), state="nothing was changed", next_command="mend the playbook, then again"
            )

    def _say(self, location: Location, words: str) -> None:
        where: Location = location
        places = {**self.document.values, **self.document.keys} if location else {}
        while where and where not in places:
            where = where[:-1]
        self.mistakes.append(Mistake(places.get(where), words, location))

    def _keys(self, value: dict[str, Any], location: Location, known: Sequence[str], what: str) -> None:
        for key in value:
            if key not in known:
                near = nearest(key, known)
                hint = f'; did you mean "{near}"?' if near else f"; {what} has {', '.join(known)}"
                self._say((*location, key), f"unknown key{hint}")

    def _stage(self, entry: Any, location: Location) -> Stage | None:
        if not isinstance(entry, dict):
            self._say(location, "a stage has name, machines and steps")
            return None
        self._keys(entry, location, STAGE_KEYS, "a stage")
        name, order = entry.get("name"), entry.get("machines")
        if not isinstance(name, str) or not name.strip():
            self._say(location, "a stage has a name")
        if order not in ORDERS:
            self._say((*location, "machines"), "`side by side` or `one by one` over the machines")
        listed = entry.get("steps")
        if not isinstance(listed, list) or not listed:
            self._say((*location, "steps"), "an empty stage: give it steps, or leave the stage out")
            listed = []
        steps = [self._step(one, (*location, "steps", place)) for place, one in enumerate(listed)]
        return Stage(
            str(name),
            ORDERS.get(str(order), False),
            tuple(step for step in steps if step is not None),
            self._hooks(entry, "before", location),
            self._hooks(entry, "after", location),
        )

    def _hooks(self, entry: dict[str, Any], key: str, location: Location) -> tuple[RunStep, ...]:
        listed = entry.get(key, [])
        if not isinstance(listed, list) or any(isinstance(one, str) for one in listed):
            self._say((*location, key), "a list of `- name: ..., run: ...`: hooks are the user's own, not step kinds")
            return ()
        found = [self._run(one, (*location, key, place)) for place, one in enumerate(listed)]
        return tuple(one for one in found if one is not None)

    def _step(self, entry: Any, location: Location) -> str | RunStep | None:
        if isinstance(entry, dict):
            return self._run(entry, location)
        if not isinstance(entry, str) or entry not in self.known:
            near = nearest(str(entry), self.known)
            hint = f'did you mean "{near}"?' if near else f"there are {', '.join(sorted(self.known))}, and `run:`"
            self._say(location, f"no step {entry!r}; {hint}")
            return None
        self._once(entry, location, "step")
        return entry

    def _once(self, name: str, location: Location, what: str) -> None:
        if name in self.names:
            place = self.document.values.get(self.names[name])
            self._say(location, f"{what} {name} twice (first in line {place.line if place else '?'})")
        self.names.setdefault(name, location)

    def _twice(self, named: Iterable[tuple[str, Location]]) -> None:
        seen: set[str] = set()
        for name, location in named:
            if name in seen:
                self._say(location, f"stage {name} twice")
            seen.add(name)

    def _dropped(self, value: Any, shipped: Sequence[str] | None) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self._say(("drop",), "a list of the steps that are left out")
            return []
        for place, step in enumerate(value):
            if shipped is not None and step not in shipped:
                self._say(("drop", place), f"the shipped {self.path.name} has no step {step!r}")
            elif step in self.names:
                self._say(("drop", place), f"{step} is left out here and is a step below")
        return list(dict.fromkeys(value))

    def _run(self, entry: Any, location: Location) -> RunStep | None:
        """A `run:` step or hook; None when there is something wrong with it, which is said."""
        mistakes = len(self.mistakes)
        if not isinstance(entry, dict):
            self._say(location, "expected `- name: ..., run: ...`")
            return None
        self._keys(entry, location, RUN_KEYS, "a `run:` step")
        name, where, timeout = entry.get("name"), entry.get("on", "machines"), entry.get("timeout", SECONDS)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            self._say(
                (*location, "name"), "a `run:` step has a name, such as `name: warm-up`: plans and errors call it so"
            )
        elif name in self.known:
            self._say((*location, "name"), f"{name} is the name of a step kind: give it another")
        else:
            self._once(name, (*location, "name"), "name")
        if where not in WHERE:
            self._say((*location, "on"), f"`on:` is {', '.join(WHERE)} (machines: each of the stage)")
        if not isinstance(timeout, int) or isinstance(timeout, bool) or not 1 <= timeout <= LONGEST:
            self._say((*location, "timeout"), f"seconds, 1 to {LONGEST}")
        if ("run" in entry) == ("file" in entry):
            self._say(location, "either `run:` with a shell line, or `file:` with a file beside the inventory")
            return None
        key = "run" if "run" in entry else "file"
        text = entry[key]
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            self._say((*location, key), "a shell line" if key == "run" else "a file beside the inventory")
            return None
        program = self._line(text, (*location, key)) if key == "run" else self._file(text, (*location, key))
        if len(self.mistakes) > mistakes or program is None:
            return None
        digest = hashlib.sha256(program).hexdigest()[:12]  # another content is another plan
        shown = masked(" ".join(text.split())) if key == "run" else f"{text} (sha256 {digest})"
        return RunStep(str(name), shown, program, str(where), timeout)

    def _line(self, text: str, location: Location) -> bytes:
        if not re.search(r"\s", text.strip()) and (self._beside(text.strip()) or Path()).is_file():
            self._say(location, f"{text.strip()} is a file beside the inventory: say `file: {text.strip()}`")
        return f"#!/bin/sh\nset -eu\n{text}\n".encode()

    def _file(self, text: str, location: Location) -> bytes | None:
        path = self._beside(text)
        if path is None:
            self._say(location, "a path below the inventory's folder, such as hooks/warm-up.sh")
        elif not path.is_file():
            self._say(location, f"no such file: {path}")
        elif path.stat().st_size > LARGEST:
            self._say(location, f"larger than {LARGEST >> 20} MiB")
        else:
            try:
                return path.read_bytes()
            except OSError as error:
                self._say(location, f"cannot be read: {error.strerror}")
        return None

    def _beside(self, text: str) -> Path | None:
        """Where a relative path points, if that is below the inventory's folder."""
        folder = (self.beside or self.path.parent.parent).resolve()
        path = (folder / text).resolve()
        return path if folder in path.parents and not Path(text).is_absolute() else None
