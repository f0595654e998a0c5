"""Small inventories for tests: the shipped one with one thing changed, as a file or as a Fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fleetctl.errors import InventoryError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.load import load
from fleetctl.fleet.schema import Inventory

SHIPPED = Path(__file__).parents[3] / "inventory.yaml"
TEXT = SHIPPED.read_text(encoding="utf-8")


def values(**changes: Any) -> dict[str, Any]:
    """The shipped inventory as plain values; `instances__port=9000` sets a key of a section, None removes it."""
    tree: dict[str, Any] = yaml.safe_load(TEXT)
    for name, value in changes.items():
        *path, last = name.split("__")
        section = tree
        for part in path:
            section = section.setdefault(part, {})
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    return tree


def inventory(**changes: Any) -> Inventory:
    return Inventory.model_validate(values(**changes))


def fleet(**changes: Any) -> Fleet:
    return Fleet(inventory(**changes), SHIPPED)


def with_engine(**flags: Any) -> Fleet:
    """The shipped fleet with flags changed: `max_num_seqs=16`; None removes one."""
    engine = {**values()["engine"], **{name.replace("_", "-"): value for name, value in flags.items()}}
    return fleet(engine={name: value for name, value in engine.items() if value is not None})


def with_env(**env: str | None) -> Fleet:
    changed = {**values()["instances"]["env"], **env}
    return fleet(instances__env={name: value for name, value in changed.items() if value is not None})


def problems(folder: Path, text: str | bytes) -> list[str]:
    """What `load` says about a file with this text, without the folder's name; empty when it is correct."""
    path = folder / "inventory.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        load(path)
    except InventoryError as error:
        return [problem.replace(f"{folder}/", "") for problem in error.problems]
    return []


def heads(folder: Path, text: str | bytes) -> list[str]:
    """The first line of each problem."""
    return [problem.splitlines()[0] for problem in problems(folder, text)]


def changed(*pairs: tuple[str, str]) -> str:
    """The shipped text with replacements, each of which has to apply."""
    text = TEXT
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text
