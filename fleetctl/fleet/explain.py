"""What is wrong with an inventory, in a person's words and with its place in the file.

Pure: pydantic's errors and allocation's problems become mistakes; `excerpt` prints them.
"""

from __future__ import annotations

import copy
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fleetctl.fleet import allocation
from fleetctl.fleet.allocation import Problem
from fleetctl.fleet.document import Document, Location, Mistake, Place
from fleetctl.fleet.nearest import nearest
from fleetctl.fleet.schema import PHRASES, Inventory

MISSING = "required, but missing"
NEVER_A_SECRET = "a secret never stands here; write env:, file: or command: under it"


def placed(document: Document, problems: Iterable[Problem]) -> list[Mistake]:
    """Cross-field problems with their places, without those about values that could not be read at all."""
    unread = {mistake.location for mistake in document.mistakes}
    return [
        Mistake(_place(document, problem.path), problem.message, problem.path)
        for problem in problems
        if problem.path not in unread
    ]


def mistakes(document: Document, error: ValidationError) -> list[Mistake]:
    """Pydantic's errors as mistakes, plus the cross-field ones that can still be told."""
    if document.value is None:
        return [Mistake(None, "is empty; docs/inventory.md lists every key")]
    if not isinstance(document.value, dict):
        place = document.values.get(())
        return [Mistake(place, f"expected a mapping of keys, got {_kind(document.value)}")]
    errors = error.errors(include_url=False)
    unread = {mistake.location for mistake in document.mistakes}
    found = [mistake for mistake in _merged(document, errors) if mistake.location not in unread]
    return [*found, *placed(document, _still_told(document, errors))]


def _merged(document: Document, errors: Sequence[Any]) -> Iterator[Mistake]:
    """One mistake for each place: the branches of a union fail one by one, and one sentence is enough."""
    seen: set[Location] = set()
    for detail in errors:
        location = _location(document, detail)
        if location in seen and detail["type"] not in ("missing", "value_error"):
            continue
        seen.add(location)
        yield _mistake(document, detail, location)


def _location(document: Document, detail: Any) -> Location:
    """Where the error is in the file: pydantic's path without its own notes (`[key]`, union branches)."""
    path = tuple(detail["loc"])
    if detail["type"] == "missing":
        return path
    known: Location = ()
    for length in range(1, len(path) + 1):
        if path[:length] not in document.values:
            break
        known = path[:length]
    return known


def _mistake(document: Document, detail: Any, location: Location) -> Mistake:
    about_key = detail["type"] in ("extra_forbidden", "missing") or detail["loc"][-1:] == ("[key]",)
    place = _place(document, location, key=about_key)
    return Mistake(place, _worded(detail, location), location)


def _place(document: Document, location: Location, key: bool = False) -> Place | None:
    """The place of a value (or of its key), or of the nearest thing around it that is written in the file."""
    if key and location in document.keys:
        return document.keys[location]
    for length in range(len(location), -1, -1):
        part = location[:length]
        value = document.values.get(part)
        if length < len(location) and part in document.keys:
            return document.keys[part]
        if value is not None:
            return value
    return None


def _worded(detail: Any, location: Location) -> str:
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "missing":
        return MISSING
    if kind == "extra_forbidden":
        return _unknown_key(location)
    if kind == "value_error":
        return str(context["error"])
    if location[:1] == ("secrets",) and not isinstance(given, dict):
        return NEVER_A_SECRET if kind.startswith("model") else f"expected text, got {_kind_only(given)}"
    if kind == "string_pattern_mismatch":
        return f"expected {PHRASES.get(context['pattern'], context['pattern'])}, got {_quoted(given)}"
    if kind in ("enum", "literal_error"):
        return _choice(context["expected"], given)
    return _expected(kind, context, given)


def _expected(kind: str, context: Any, given: Any) -> str:
    limits = {"greater_than_equal": ("at least", "ge"), "greater_than": ("more than", "gt")}
    limits |= {"less_than_equal": ("at most", "le"), "less_than": ("less than", "lt")}
    if kind in limits:
        words, key = limits[kind]
        return f"must be {words} {context[key]:g}, got {given}"
    if kind == "too_short":
        return "needs at least one entry"
    if kind in ("string_too_long", "string_too_short"):
        edge = context.get("max_length", context.get("min_length"))
        return f"must have {'at most' if 'max_length' in context else 'at least'} {edge} characters"
    wanted = next((text for start, text in _WANTED.items() if kind.startswith(start)), None)
    if wanted is None:
        return f"not accepted here: {_kind(given)}"
    return f"expected {wanted}, got {_kind(given)}{_quoting(wanted, given)}"


_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of keys",
    "model": "a mapping of keys",
    "path": "a path",
}


def _quoting(wanted: str, given: Any) -> str:
    if wanted == "text" and isinstance(given, bool | int | float):
        text = str(given).lower() if isinstance(given, bool) else str(given)
        return f'; quote it: "{text}"'
    if wanted in ("a whole number", "a number") and isinstance(given, str) and re.fullmatch(r"-?\d+", given):
        return "; write it without the quotes"
    return ""


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}" if len(str(value)) < 40 else "a very long number"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping of keys"
    return f"the text {_quoted(value)}"


def _kind_only(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _quoted(value: Any) -> str:
    text = str(value)
    return f'"{text if len(text) <= 60 else text[:57] + "..."}"'


def _choice(expected: str, given: Any) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    near = nearest(str(given), choices)
    hint = f'; did you mean "{near}"?' if near else ""
    return f"expected {' or '.join(choices)}, got {_kind(given)}{hint}"


def _unknown_key(location: Location) -> str:
    model = _model_at(location[:-1])
    keys = list(model.model_fields) if model else []
    near = nearest(str(location[-1]), keys)
    if near:
        return f'unknown key; did you mean "{near}"?'
    elsewhere = _elsewhere(str(location[-1]))
    if elsewhere:
        return f'unknown key; did you mean "{elsewhere}"?'
    return f"unknown key; known here: {', '.join(keys)}"


def _elsewhere(key: str) -> str | None:
    """Where a key that is right but in the wrong section belongs, if that is certain."""
    found = [f"{name}.{key}" for name in Inventory.model_fields if key in _fields(_model_at((name,)))]
    return found[0] if len(found) == 1 else None


def _fields(model: type[BaseModel] | None) -> Sequence[str]:
    return tuple(model.model_fields) if model else ()


def _model_at(location: Location) -> type[BaseModel] | None:
    current: Any = Inventory
    for part in location:
        if isinstance(part, int):
            continue
        if not (isinstance(current, type) and issubclass(current, BaseModel)):
            return None
        field = current.model_fields.get(part)
        current = _model_in(field.annotation) if field else None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _model_in(annotation: Any) -> Any:
    """The section class inside `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation
    return next((found for found in map(_model_in, typing.get_args(annotation)) if found is not None), None)


def _still_told(document: Document, errors: Sequence[Any]) -> list[Problem]:
    """Cross-field problems of what is left with sound values for the wrong ones; none where it could mislead."""
    left = copy.deepcopy(document.value)
    for detail in errors:
        location = _location(document, detail)
        if detail["type"] == "extra_forbidden":
            _set(left, location, _GONE)
        elif not _mend(left, location):
            return []
    try:
        return allocation.problems(Inventory.model_validate(left))
    except ValidationError:
        return []


_GONE = object()
_SOUND: dict[Location, Any] = {
    ("fleet",): "sound",
    ("model",): {"name": "sound", "path": "/sound"},
    ("image",): {"reference": "sound"},
    ("engine",): {},
    ("speculative",): _GONE,
    ("rollout",): _GONE,
    ("secrets",): {"api_key": {"env": "SOUND"}},
    ("instances", "name"): "sound-{index}",
    ("balancer", "unit"): "sound",
    ("accelerator", "driver"): _GONE,
    ("accelerator", "dcmi"): _GONE,
    ("accelerator", "npu_smi"): _GONE,
    ("accelerator", "device_mode"): _GONE,
}
# What decides about devices, ports and machines: without a sound value nothing can be told about them.
_DECISIVE = frozenset({"per_machine", "devices", "port", "machine", "listen", "state_listen"})


def _mend(tree: Any, location: Location) -> bool:
    """Puts a sound value where a wrong one is; False where any value would invent something."""
    for length in (1, 2):
        if location[:length] in _SOUND:
            return _set(tree, location[:length], _SOUND[location[:length]])
    if location[:1] == ("machines",) and len(location) > 2:
        if location[2] == "address":
            # 2001:db8::/32 is for documentation: no machine has it.
            return _set(tree, location[:3], f"2001:db8::{int(location[1]) + 1:x}")
        return location[2] in ("ssh", "clean") and _set(tree, location[:3], _GONE)
    if location[:1] in (("instances",), ("balancer",)) and len(location) > 1:
        return location[1] not in _DECISIVE and _set(tree, location[:2], _GONE)
    return False


def _set(tree: Any, location: Location, value: Any) -> bool:
    """Sets (or, for `_GONE`, removes) what is at `location`; False where the way there does not exist."""
    try:
        for part in location[:-1]:
            tree = tree[part]
        if value is _GONE:
            tree.pop(location[-1], None)
        else:
            tree[location[-1]] = value
    except (KeyError, IndexError, TypeError, AttributeError):
        return False
    return True
