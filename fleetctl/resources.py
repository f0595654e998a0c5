"""Files that travel with the program: playbooks and what the machines get (units, nginx.conf, Lua).

A folder of the same name beside the inventory overrides them file by file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fleetctl.errors import UsageError

Kind = Literal["playbooks", "units"]
PACKAGE = Path(__file__).parent


def find(kind: Kind, name: str, beside: Path | None = None) -> Path:
    """The file to use: beside the inventory, in the installed package, or in the checkout.

    Raises UsageError when none of them has it.
    """
    for folder in (beside, PACKAGE, PACKAGE.parent):
        if folder is not None and (folder / kind / name).is_file():
            return folder / kind / name
    raise UsageError(f"{kind}/{name} is neither beside the inventory nor in the installed program")


def read(kind: Kind, name: str, beside: Path | None = None) -> str:
    return find(kind, name, beside).read_text(encoding="utf-8")
