"""docs/inventory.md from the models: every key, its type, default and meaning, and every lint rule.

python -m fleetctl.fleet.reference > docs/inventory.md
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fleetctl.fleet import flag_types
from fleetctl.fleet.lint import CONFIG_RULES, RULES, WEIGHT_RULES
from fleetctl.fleet.schema import COMPUTED_FLAGS, PHRASES, Inventory

HEAD = """\
# The inventory

One YAML file describes one fleet. `fleetctl` reads the file named by `-i FILE`, else by `$FLEETCTL_INVENTORY`, else
`./inventory.yaml`. `inventory.yaml` at the top of this repository is a whole example, with comments.
This page is generated from the models (`make docs`): change the descriptions in `fleetctl/fleet/schema.py`, not here.

Every problem is shown at once, each with its place, the line and the nearest key:

    inventory.yaml:69:7: machines[1].clean.unitz: unknown key; did you mean "units"?
          unitz: ["minimax-h3*"]
          ^

A key in **bold** is required. YAML that reads otherwise than it looks is an error: `on` and `no` for true and false,
`010`, `22:19`, dates, a key given twice. Anchors, aliases and `<<` may be used.
"""
NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false", PurePosixPath: "absolute path"}


def document() -> str:
    """The whole page, as Markdown."""
    sections = "\n".join(_section(path, model) for path, model in _sections("", Inventory))
    return "\n".join([HEAD, sections, _computed(), _typed(), _rules()])


def _sections(path: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        inner, many = _model_in(field.annotation)
        if inner is not None:
            step = f"{name}[]" if many else name
            yield from _sections(f"{path}.{step}" if path else step, inner)


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section class inside an annotation, and whether it is a list of them."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return (annotation, False) if issubclass(annotation, BaseModel) else (None, False)
    many = typing.get_origin(annotation) is tuple
    for part in typing.get_args(annotation):
        inner, deeper = _model_in(part)
        if inner is not None:
            return inner, many or deeper
    return None, False


def _section(path: str, model: type[BaseModel]) -> str:
    title = f"`{path}`" if path else "The file"
    about = re.sub(r"\s+", " ", (model.__doc__ or "").strip())
    rows = [_row(name, field) for name, field in model.model_fields.items()]
    head = ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", "", about, "", *head, *rows, ""])


def _row(name: str, field: FieldInfo) -> str:
    key = f"**`{name}`**" if field.is_required() else f"`{name}`"
    kind = _kind(field.annotation, field.metadata)
    cells = (key, kind, _default(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.default_factory() if field.default_factory else field.default  # type: ignore[call-arg]  # no factory here takes the data
    if value is None or isinstance(value, BaseModel) or value in ((), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`[{', '.join(map(str, value))}]`" if isinstance(value, tuple) else f"`{value}`"


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """A type in words."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _kind(parts[0], [*_flat(parts[1:]), *metadata])
    if origin in (types.UnionType, typing.Union):
        # A flag may be anything; its own section says which ones are typed.
        given = [part for part in parts if part is not type(None)]
        return "anything" if len(given) > 3 else " or ".join(_kind(part, metadata) for part in given)
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin is tuple:
        return f"list of {_kind(parts[0], [])}"
    if origin is dict:
        return f"mapping to {_kind(parts[1], [])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return _limited(NAMES.get(annotation, "anything"), metadata)


def _flat(metadata: tuple[Any, ...]) -> list[Any]:
    return [one for part in metadata for one in (part.metadata if isinstance(part, FieldInfo) else [part])]


def _limited(word: str, metadata: list[Any]) -> str:
    for one in metadata:
        pattern = getattr(one, "pattern", None)
        if pattern is not None:
            return PHRASES.get(pattern, f"{word} like `{pattern}`")
    low = next((one for one in metadata if isinstance(one, Ge | Gt)), None)
    high = next((one for one in metadata if isinstance(one, Le | Lt)), None)
    if isinstance(low, Ge) and isinstance(high, Le):
        return f"{word}, {low.ge} to {high.le}"
    if isinstance(low, Gt):
        return f"{word} above {low.gt}"
    return f"{word}, at least {low.ge}" if isinstance(low, Ge) else word


def _computed() -> str:
    rows = "\n".join(f"- `{name}`: {reason}" for name, reason in COMPUTED_FLAGS.items())
    return f"## Flags that are not written under `engine`\n\n{rows}\n"


def _typed() -> str:
    names = {*flag_types.WHOLE, *flag_types.COUNTS, *flag_types.NUMBERS, *flag_types.TRUTHS, *flag_types.WORDS}
    names |= {*flag_types.CHOICES, *flag_types.MAPPINGS}
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    return f"## Flags whose values are typed\n\n{listed}. Any other flag is passed on as it is.\n"


def _rules() -> str:
    rows = [f"| `{rule.id}` | {rule.severity.value} | {rule.reason} |" for rule in RULES.values()]
    rows += [f"| `{one.id}` | {one.severity.value} | {one.reason} |" for one in WEIGHT_RULES.values()]
    rows += [
        f"| `{name}` | {severity.value} | Compared with the model's config.json. |"
        for name, severity in CONFIG_RULES.items()
    ]
    head = ["| Rule | Severity | Why |", "|---|---|---|"]
    about = "`fleetctl check` shows these; an error stops a rollout."
    return "\n".join(["## Lints", "", about, "", *head, *sorted(rows), ""])


if __name__ == "__main__":
    sys.stdout.write(document())
