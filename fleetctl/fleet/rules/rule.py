"""What a rule is, and the list that rules put themselves on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from fleetctl.fleet.fleet import Fleet


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Complaint:
    """What one rule has to say: the key it is about, what is wrong, and what to write instead."""

    where: str
    message: str
    fix: str


Check = Callable[[Fleet], Iterator[Complaint]]


@dataclass(frozen=True)
class Rule:
    """`row` is the row of table 0 (0.x) or the section of facts/ascend-vllm.md that the rule enforces."""

    id: str
    row: str
    severity: Severity
    check: Check

    @property
    def reason(self) -> str:
        return (self.check.__doc__ or "").strip().splitlines()[0]


RULES: dict[str, Rule] = {}


def rule(id: str, row: str, severity: Severity) -> Callable[[Check], Check]:
    """Puts a check on the list; its docstring is the reason that docs/inventory.md gives."""

    def listed(check: Check) -> Check:
        RULES[id] = Rule(id, row, severity, check)
        return check

    return listed


def variable(fleet: Fleet, name: str) -> str | None:
    """A variable of the containers, None where nothing sets it."""
    return fleet.env.get(name)
