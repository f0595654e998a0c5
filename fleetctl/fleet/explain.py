"""What is wrong with an inventory, in a person's words and with its place in the file.

Pure: pydantic's errors and allocation's problems become mistakes, and mistakes text with line and caret.
"""

from __future__ import annotations

import copy
import re
import types
import typing
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fleetctl.fleet import allocation
from fleetctl.fleet.allocation import Problem
from fleetctl.fleet.document import Document, Location, Mistake, Place
from fleetctl.fleet.nearest import nearest
from fleetctl.fleet.schema import PHRASES, Inventory

WIDEST_LINE = 160
# Sections that no cross-field rule looks at: their errors do not keep the rules from being checked.
INDEPENDENT = frozenset({"fleet", "model", "image", "engine", "speculative", "rollout", "secrets"})


def render(name: str, document: Document, mistakes: Iterable[Mistake]) -> list[str]:
    """Each mistake once, in file order, as `name:line:col: key: message`, the line, and a caret."""
    ordered = sorted(set(mistakes), key=lambda m: (m.place.line, m.place.column) if m.place else (0, 0))
    return [_rendered(name, document, mistake) for mistake in ordered]


def _rendered(name: str, document: Document, mistake: Mistake) -> str:
    key = spoken(mistake.location)
    message = f"{key}: {mistake.message}" if key else mistake.message
    if mistake.place is None:
        return f"{name}: {_masked(message)}"
    head = f"{name}:{mistake.place.line}:{mistake.place.column}: {_masked(message)}"
    if mistake.place.line > len(document.lines):
        return head
    return "\n".join([head, *_excerpt(document.lines[mistake.place.line - 1], mistake)])


def spoken(location: Location) -> str:
    """`machines[2].clean.units`, as people write it; keys that are not words are quoted."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if re.fullmatch(r"[\w{}./@*-]{1,60}", part) else repr(part[:60])
            text += f".{word}" if text else word
    return text


def _excerpt(line: str, mistake: Mistake) -> Iterator[str]:
    column = mistake.place.column if mistake.place else 1
    secret = (
        mistake.location[:1] == ("secrets",)
        or "api-key" in spoken(mistake.location).replace("_", "-").lower()
    )
    shown = _masked(_hide_value(line) if secret else line)
    if len(shown) > WIDEST_LINE or not shown.isprintable():
        shown = "".join(one if one.isprintable() or one == "\t" else "\ufffd" for one in shown)[:WIDEST_LINE]
    yield f"    {shown}"
    if column <= len(shown) + 1:
        yield "    " + "".join(map(_blank, shown[: column - 1])) + "^"


def _blank(character: str) -> str:
    """Space as wide as the character: a caret below Chinese text still points at its mark."""
    if character == "\t":
        return "\t"
    if unicodedata.combining(character):
        return ""
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


def _hide_value(line: str) -> str:
    return re.sub(r"(:\s+|^\s*-\s+)(?![\s#{\[&*|>])\S.*$", r"\1***", line, count=1) if line.strip() else line


def _masked(text: str) -> str:
    """Whatever looks like a key is not repeated, wherever it was pasted."""
    return re.sub(r"\b(sk|hf|ghp|glpat)([-_])[A-Za-z0-9_-]{6,}", r"\1\2***", text)


def placed(document: Document, problems: Iterable[Problem]) -> list[Mistake]:
    """Allocation's problems with their places."""
    return [Mistake(_place(document, problem.path), problem.message, problem.path) for problem in problems]


def mistakes(document: Document, error: ValidationError) -> list[Mistake]:
    """Pydantic's errors as mistakes, plus the cross-field ones that can still be told."""
    if document.value is None:
        return [Mistake(None, "is empty; docs/inventory.md lists every key")]
    if not isinstance(document.value, dict):
        place = document.values.get(())
        return [Mistake(place, f"expected a mapping of keys, got {_kind(document.value)}")]
    errors = error.errors(include_url=False)
    known_bad = {mistake.location for mistake in document.mistakes}
    found = [mistake for mistake in _merged(document, errors) if not _covered(mistake.location, known_bad)]
    return [*found, *placed(document, _still_told(document, errors))]


def _covered(location: Location, bad: set[Location]) -> bool:
    """A value that was misread already has its mistake; what follows from it is not said as well."""
    return location in bad


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
        return "required, but missing"
    if kind == "extra_forbidden":
        return _unknown_key(location)
    if kind == "value_error":
        return str(context["error"])
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
    """Cross-field problems of what is left without the wrong keys; none where that could mislead."""
    left = copy.deepcopy(document.value)
    for detail in errors:
        location = _location(document, detail)
        if detail["type"] == "extra_forbidden":
            _remove(left, location)
        elif location[:1] and location[0] in INDEPENDENT and location[0] in _SOUND:
            left[location[0]] = _SOUND[str(location[0])]
        elif detail["type"] == "missing" and detail["loc"][0] in INDEPENDENT:
            left[detail["loc"][0]] = _SOUND[detail["loc"][0]]
        else:
            return []
    try:
        return allocation.problems(Inventory.model_validate(left))
    except ValidationError:
        return []


_SOUND: dict[str, Any] = {
    "fleet": "sound",
    "model": {"name": "sound", "path": "/sound"},
    "image": {"reference": "sound"},
    "engine": {},
    "speculative": None,
    "rollout": {},
    "secrets": {"api_key": {"env": "SOUND"}},
}


def _remove(tree: Any, location: Location) -> None:
    for part in location[:-1]:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(tree, dict):
        tree.pop(location[-1], None)
