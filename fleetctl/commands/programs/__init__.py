"""Programs that fleetctl installs on machines as data: Python that must run on an older interpreter than ours."""

from __future__ import annotations

from functools import cache
from pathlib import Path

PROGRAMS = Path(__file__).parent


@cache
def text(name: str) -> str:
    """The text of `programs/NAME.py`, as it is written to a machine."""
    return (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
