"""From inventory.yaml to a `Fleet`, or to every problem in it at once.

Each problem is `file:line:col: key: message`, the line, and a caret. The way through a correct file is
short and imports little; the wording of errors is in `explain`, read only when there is one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fleetctl.errors import InventoryError, UsageError
from fleetctl.fleet import allocation, document, flags
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Inventory

if TYPE_CHECKING:
    from fleetctl.fleet.document import Document, Mistake

DEFAULT = Path("inventory.yaml")
VARIABLE = "FLEETCTL_INVENTORY"


def find(explicit: Path | None = None) -> Path:
    """The inventory to use: the one named, else $FLEETCTL_INVENTORY, else ./inventory.yaml.

    What a person exported wins over the file that happens to lie there (docs/decisions/inventory-order.md).
    Raises UsageError when there is none. A named file is not looked at: `load` says what is wrong with it.
    """
    if explicit is not None:
        return explicit
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    if DEFAULT.is_file():
        return DEFAULT
    raise UsageError(
        f"no inventory: there is no {DEFAULT} in this folder and {VARIABLE} is not set",
        next_command=f"name one with -i FILE after the command, or export {VARIABLE}=FILE",
    )


def origin(explicit: Path | None = None) -> str:
    """The inventory that `find` finds and why that one, for who did not name it: `inventory.yaml (in this folder)`.

    What is below this folder is named from here: a whole path is often wider than a terminal.
    """
    why = "-i" if explicit is not None else VARIABLE if os.environ.get(VARIABLE) else "in this folder"
    path, here = find(explicit), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path} ({why})"


def load(path: Path) -> Fleet:
    """The fleet described by a file; raises InventoryError with all problems, in the order of the file."""
    read = document.read(path)
    inventory, mistakes = _validated(read)
    if inventory is not None and not mistakes:
        return Fleet(inventory, path)
    from fleetctl.fleet import excerpt

    raise InventoryError(excerpt.render(str(path), read, mistakes), _mend(path, mistakes))


def _mend(path: Path, mistakes: list[Mistake]) -> str:
    """What to type next. A file that cannot be read at all is seldom the one that was meant."""
    lines = [mistake.place.line for mistake in mistakes if mistake.place is not None]
    if not lines:
        return "name another file with -i FILE, or mend this one"
    first = f"{path}:{min(lines)}"
    return f"mend {first if len(set(mistakes)) == 1 else f'these, the first in {first}'}, then fleetctl check"


def _validated(read: Document) -> tuple[Inventory | None, list[Mistake]]:
    if read.mistakes and not isinstance(read.value, dict):
        return None, read.mistakes
    try:
        inventory = Inventory.model_validate(read.value)
    except ValidationError as error:
        from fleetctl.fleet import explain

        return None, [*read.mistakes, *explain.mistakes(read, error)]
    problems = [*allocation.problems(inventory), *flags.problems(inventory)]
    if problems:
        from fleetctl.fleet import explain

        return inventory, [*read.mistakes, *explain.placed(read, problems)]
    return inventory, read.mistakes
