"""A YAML file as plain values plus the place of every one of them.

Strict where YAML surprises people: a key given twice, `on` and `no` read as truth values, `010` read as
eight, `22:19` read as minutes, dates, tags, and aliases that contain themselves are all problems with a
place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

LARGEST_FILE = 1 << 20
LARGEST_DOCUMENT = 100_000
DEEPEST = 50

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Line and column, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Mistake:
    """Something wrong at a place; `place` is None for what concerns the file as a whole."""

    place: Place | None
    message: str
    location: Location = ()


@dataclass
class Document:
    """The values of a file, where each key and value stands, and what was wrong while reading it."""

    lines: list[str] = field(default_factory=list)
    value: Any = None
    keys: dict[Location, Place] = field(default_factory=dict)
    values: dict[Location, Place] = field(default_factory=dict)
    raw: dict[Location, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)


def read(path: Path) -> Document:
    """The document in a file; whatever is wrong with it is in `mistakes`, nothing is raised."""
    text = _text(path)
    return parse(text) if isinstance(text, str) else Document(mistakes=[text])


def _text(path: Path) -> str | Mistake:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except IsADirectoryError:
        return Mistake(None, "is a folder; name the file in it")
    except FileNotFoundError:
        return Mistake(None, "no such file")
    except (OSError, ValueError) as error:
        return Mistake(None, f"cannot be read: {getattr(error, 'strerror', None) or error}")
    if len(data) > LARGEST_FILE:
        return Mistake(None, f"is larger than {LARGEST_FILE >> 20} MiB: not an inventory")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Mistake(None, f"is not UTF-8 text (byte 0x{data[error.start]:02x} in line {line})")


def parse(text: str) -> Document:
    """The document in a text; whatever is wrong with it is in `mistakes`, nothing is raised."""
    document = Document(lines=re.split(r"\r\n|\r|\n", text))
    if _too_deep(text, document):
        return document
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        document.mistakes.append(_syntax(text, error))
        return document
    if node is not None:
        reader = _Reader(document)
        document.value = reader.value(node, ())
    return document


# The C parser descends on the C stack and has no limit of its own: too deep a file would end the process.
_OPENING = re.compile(r"[\[{]")


def _too_deep(text: str, document: Document) -> bool:
    if not _OPENING.search(text) and len(text) < DEEPEST:
        return False
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                place = Place(event.start_mark.line + 1, event.start_mark.column + 1) if event.start_mark else None
                document.mistakes.append(Mistake(place, f"nested more than {DEEPEST} levels deep"))
                return True
    except yaml.YAMLError:
        return False
    return False


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _syntax(text: str, error: yaml.YAMLError) -> Mistake:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None)
    if mark is not None:
        context = getattr(error, "context", None)
        said = ", ".join(part for part in (context, problem) if part)
        return Mistake(Place(mark.line + 1, mark.column + 1), f"not valid YAML: {said}{_advice(text, mark.line)}")
    position = getattr(error, "position", None)
    reason = getattr(error, "reason", None) or str(error).splitlines()[0]
    if isinstance(position, int) and position >= 0:
        return Mistake(_place_of_offset(text, position), f"not valid YAML: {reason}")
    return Mistake(_first_control(text), f"not valid YAML: {reason}")


def _advice(text: str, line: int) -> str:
    lines = text.splitlines()
    near = lines[max(0, line - 1) : line + 1]
    return "; indent with spaces, not tabs" if any(re.match(r" *\t", one) for one in near) else ""


def _place_of_offset(text: str, offset: int) -> Place:
    before = text[:offset]
    return Place(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def _first_control(text: str) -> Place | None:
    found = re.search(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    return _place_of_offset(text, found.start()) if found else None


class _Reader:
    """Turns nodes into values; every surprise becomes a mistake of the document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.open: set[int] = set()
        self.count = 0
        self.constructor = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, location: Location) -> Any:
        self.document.values.setdefault(location, _place(node))
        self.count += 1
        if id(node) in self.open:
            self._mistake(node, location, "an alias contains itself")
            return None
        if self.count > LARGEST_DOCUMENT:
            if self.count == LARGEST_DOCUMENT + 1:
                self._mistake(node, location, "aliases make this file too large")
            return None
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, location)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, location)
            return self._scalar(node, location)
        finally:
            self.open.discard(id(node))

    def _sequence(self, node: yaml.SequenceNode, location: Location) -> list[Any] | None:
        if node.tag != "tag:yaml.org,2002:seq":
            self._foreign(node, location)
            return None
        return [self.value(item, (*location, position)) for position, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[Any, Any] | None:
        if node.tag != "tag:yaml.org,2002:map":
            self._foreign(node, location)
            return None
        found: dict[Any, Any] = {}
        first: dict[Hashable, Place] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged.append(value_node)
                continue
            key = self._key(key_node, location)
            if key is None:
                continue
            here = (*location, key)
            if key in first:
                message = f"given twice (first in line {first[key].line})"
                self.document.mistakes.append(Mistake(_place(key_node), message, here))
                continue
            first[key] = self.document.keys[here] = _place(key_node)
            found[key] = self.value(value_node, here)
        for other in merged:
            self._merge(found, other, location)
        return found

    def _key(self, node: yaml.Node, location: Location) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._mistake(node, location, "a key must be a word")
            return None
        if node.tag in _SPOKEN and node.tag != "tag:yaml.org,2002:str":
            # A key such as `on`, `69` or `null` is the word itself: only values have types.
            return str(node.value)
        if node.tag != "tag:yaml.org,2002:str":
            self._foreign(node, location)
            return None
        return str(node.value)

    def _merge(self, found: dict[Any, Any], node: yaml.Node, location: Location) -> None:
        """`<<: *other`: keys that are not given here come from there; earlier ones win."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._mistake(source, location, "<< merges mappings only")
                continue
            if id(source) in self.open:
                self._mistake(source, location, "an alias contains itself")
                continue
            part = _Reader(self.document)
            part.open, part.count = self.open, self.count
            before = dict(self.document.keys)
            merged = part._mapping_of(source, location)
            self.count = part.count
            for key, value in merged.items():
                if key not in found:
                    found[key] = value
            # Keys given here keep their own place.
            self.document.keys.update({k: v for k, v in before.items() if k in self.document.keys})

    def _mapping_of(self, source: yaml.MappingNode, location: Location) -> dict[Any, Any]:
        mistakes = len(self.document.mistakes)
        self.open.add(id(source))
        merged = self._mapping(source, location) or {}
        self.open.discard(id(source))
        # The source is read where it stands as well; saying it twice helps nobody.
        del self.document.mistakes[mistakes:]
        return merged

    def _scalar(self, node: yaml.Node, location: Location) -> Any:
        spoken = _SPOKEN.get(node.tag)
        if spoken is None:
            self._foreign(node, location)
            return None
        text = str(node.value)
        self.document.raw.setdefault(location, text)
        try:
            value = spoken(self.constructor, node)
        except (ValueError, OverflowError, KeyError):
            self._mistake(node, location, f'YAML cannot read "{_short(text)}"; quote it')
            return text
        trap = _trap(text, value)
        if trap:
            self._mistake(node, location, trap)
        return text if trap else value

    def _foreign(self, node: yaml.Node, location: Location) -> None:
        tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
        what = f'YAML reads "{node.value}" as a date; quote it' if tag == "!!timestamp" else f"{tag} is not used here"
        self._mistake(node, location, what)

    def _mistake(self, node: yaml.Node, location: Location, message: str) -> None:
        self.document.mistakes.append(Mistake(_place(node), message, location))


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _trap(text: str, value: Any) -> str | None:
    """What to say where YAML 1.1 reads a word otherwise than a person does; None where it does not."""
    word = text.lower()
    if isinstance(value, bool) and word not in ("true", "false"):
        plain = "true" if value else "false"
        return f'YAML reads {text} as {plain}; write {plain}, or quote it: "{text}"'
    if isinstance(value, int | float) and not isinstance(value, bool):
        if ":" in text:
            return f'YAML reads {text} as the number {value:g} (base 60); quote it: "{text}"'
        if re.match(r"[-+]?0[0-7_]+$", text):
            return f'YAML reads {text} as the octal number {value}; drop the zero, or quote it: "{text}"'
    return None


def _construct(name: str) -> Callable[[Any, yaml.Node], Any]:
    method = getattr(yaml.constructor.SafeConstructor, f"construct_yaml_{name}")
    return cast("Callable[[Any, yaml.Node], Any]", method)


_SPOKEN: dict[str, Callable[[Any, yaml.Node], Any]] = {
    f"tag:yaml.org,2002:{name}": _construct(name) for name in ("null", "bool", "int", "float", "str")
}
