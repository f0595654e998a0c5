"""The result of one check: what was expected, what was seen how often, and what that proves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from fleetctl.verify import bounds

SHOWN = 3  # reasons that one line shows
RANDOM_WEIGHTS = "not applicable: random weights"


class Where(str, Enum):
    """What was asked: the machines themselves, instances on their machine, the balancer there, or public_url."""

    MACHINES = "machines"
    DIRECT = "direct"
    BALANCER = "balancer"
    OUTSIDE = "outside"


class Status(str, Enum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Look:
    """One observation: of what, and what is wrong with it (None: nothing). `soft`: worth a look, no failure."""

    who: str
    problem: str | None = None
    soft: bool = False


@dataclass(frozen=True)
class Check:
    """`wrong` of `n` looks failed; `failed` says who. `bound`: the failure rate (0..1) that the looks still allow at
    95 %, those worth a look counted as failed; None for a census, where everything there is was looked at.
    `unreachable`: it failed for want of an answer.
    """

    id: str
    where: Where
    status: Status
    expected: str
    seen: str
    n: int = 0
    wrong: int = 0
    bound: float | None = None
    failed: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    next_command: str | None = None
    unreachable: bool = False


def skipped(id: str, where: Where, expected: str, why: str) -> Check:
    return Check(id, where, Status.SKIP, expected, why)


def not_applicable(id: str, where: Where, expected: str) -> Check:
    """What only a trained model can pass; `model.random_weights` says that this one is none."""
    return skipped(id, where, expected, RANDOM_WEIGHTS)


def settle(
    id: str,
    where: Where,
    expected: str,
    looks: Iterable[Look],
    *,
    good: str = "",
    sampled: bool = True,
    soft_counts: bool = False,
    left_out: Mapping[str, str] | None = None,
    next_command: str | None = None,
    unreachable: bool = False,
) -> Check:
    """The check that these looks make. `good`: words of `seen` when all is well; `left_out`: who was not judged.

    `soft_counts`: what is worth a look only is not among the k of "k of n" either.
    """
    rows = list(looks)
    hard = [look for look in rows if look.problem is not None and not look.soft]
    soft = [look for look in rows if look.problem is not None and look.soft]
    out = left_out or {}
    if not rows:
        reasons = "; ".join(f"{who} {why}" for who, why in out.items())
        return Check(id, where, Status.SKIP, expected, reasons or "nothing to look at", left_out=tuple(out))
    status = Status.FAIL if hard else Status.WARN if soft else Status.PASS
    problems = _grouped(hard or soft)
    seen = _seen(len(rows), len(hard) + soft_counts * len(soft), problems, good if not hard and not soft else "")
    if out:
        seen += f" (without {', '.join(out)})"
    failed = frozenset(look.who for look in hard)
    return Check(
        id,
        where,
        status,
        expected,
        seen,
        n=len(rows),
        wrong=len(hard),
        bound=bounds.upper(len(hard) + len(soft), len(rows)) if sampled else None,
        failed=failed,
        problems=problems,
        left_out=tuple(out),
        next_command=next_command.format(who=min(failed)) if next_command and failed else None,
        unreachable=unreachable and bool(hard),
    )


def _grouped(looks: Iterable[Look]) -> tuple[str, ...]:
    """`67/2: garbled`, each once, with how often when more than once."""
    counts: dict[str, int] = {}
    for look in looks:
        text = f"{look.who}: {look.problem}"
        counts[text] = counts.get(text, 0) + 1
    return tuple(text if count == 1 else f"{text} ({count} times)" for text, count in counts.items())


def _seen(n: int, wrong: int, problems: tuple[str, ...], good: str) -> str:
    head = f"{n - wrong} of {n}"
    if good:
        return f"{head}, {good}"
    if not problems:
        return head
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return f"{head}; {'; '.join(problems[:SHOWN])}{more}"
