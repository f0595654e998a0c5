"""Playbooks: the ordered steps of one command, as people read them in playbooks/*.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fleetctl import resources
from fleetctl.errors import UsageError

ORDERS = {"side by side": True, "one by one": False}


@dataclass(frozen=True)
class Stage:
    """Steps done on every machine; `parallel` over the machines, or one machine after the other."""

    name: str
    parallel: bool
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Playbook:
    name: str
    stages: tuple[Stage, ...]


def load(name: str, known: set[str], beside: Path | None = None) -> Playbook:
    """Read `playbooks/NAME.yaml`. Raises UsageError that names the file and what is wrong with it."""
    path = resources.find("playbooks", f"{name}.yaml", beside)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {error}") from None
    stages = document.get("stages") if isinstance(document, dict) else None
    if not isinstance(stages, list) or not stages:
        raise UsageError(f"{path}: a playbook has a list of stages")
    return Playbook(name, tuple(_stage(path, entry, known) for entry in stages))


def _stage(path: Path, entry: Any, known: set[str]) -> Stage:
    if not isinstance(entry, dict) or set(entry) != {"name", "machines", "steps"}:
        raise UsageError(f"{path}: a stage has exactly name, machines and steps, this one is {entry!r}")
    if entry["machines"] not in ORDERS:
        raise UsageError(f"{path}: machines of stage {entry['name']} is `side by side` or `one by one`")
    for step in entry["steps"]:
        if step not in known:
            raise UsageError(f"{path}: no step {step!r}; there are {', '.join(sorted(known))}")
    return Stage(str(entry["name"]), ORDERS[entry["machines"]], tuple(entry["steps"]))
