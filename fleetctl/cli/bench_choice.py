"""What the command line says about a run of `fleetctl bench`, and the scenario that comes of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet

if TYPE_CHECKING:
    from fleetctl.bench.scenarios import Scenario

SCALE = {"k": 1000, "m": 1_000_000}
OPTIONS = (
    *("backend", "users", "tokens", "seconds", "rate", "keys", "sessions", "requests", "lengths", "prompt"),
    *("times", "passes", "window", "apart", "after", "arms"),
)


@dataclass(frozen=True)
class Choice:
    """What the command line says about the run itself. `given`: options of the scenario, by field name."""

    name: str
    files: tuple[Path, ...]
    given: dict[str, Any]
    url: str | None
    seed: int
    out: Path | None
    max_errors: int | None
    max_seconds: float
    max_foreign: int | None = None


def default_path(fleet: Fleet, name: str) -> Path:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return Path("bench") / f"{fleet.name}-{name}-{stamp}.jsonl"


def scenario_of(kind: type[Any], choice: Choice) -> Scenario:
    """The scenario with what was given on the command line. Raises UsageError for an option that it does not have."""
    known = {one.name: one for one in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in choice.given.items():
        if name not in known:
            option = "--no-stream" if name == "stream" else f"--{name}"
            listed = ", ".join(f"--{one}" for one in known if one in OPTIONS)
            raise UsageError(f"bench {choice.name} has no {option}; it has {listed}")
        values[name] = _value(name, value, known[name].default)
    scenario: Scenario = kind(**values)
    return scenario


def _value(name: str, text: Any, default: Any) -> Any:
    """`1,2,4` for lists, `10K` for numbers of tokens."""
    if not isinstance(text, str) or isinstance(default, str):
        return text
    numbers = tuple(_number(name, part) for part in text.split(","))
    if isinstance(default, tuple):
        return numbers
    if len(numbers) != 1:
        raise UsageError(f"--{name} {text}: one number")
    return numbers[0]


def _number(name: str, text: str) -> int:
    digits, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in SCALE else (text, "")
    if not digits.isdigit() or (int(digits) == 0 and name != "arms"):
        raise UsageError(f"--{name} {text}: a whole number above zero, such as 8 or 10K")
    return int(digits) * SCALE.get(unit, 1)
