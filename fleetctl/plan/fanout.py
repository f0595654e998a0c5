"""Who copies from whom: a machine that has it becomes a source, so the copies double with every turn. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """`receiver` copies from `source` in `turn` (1 is the first); `after` are those that `source` serves before it."""

    receiver: int
    source: int
    turn: int
    after: tuple[int, ...] = ()


def pairs(
    receivers: Sequence[int], holders: Iterable[int], serves: int, able: Container[int] | None = None
) -> dict[int, Pair]:
    """The pairs by receiver, in the receivers' order. `holders` have it; each source serves `serves` at a time.

    `able`: receivers that can serve once they have it; None: all of them.

    Raises ValueError when somebody waits and nobody has it.
    """
    sources, waiting = list(dict.fromkeys(holders)), list(receivers)
    if waiting and not sources:
        raise ValueError("no machine has it")
    found: dict[int, Pair] = {}
    turn = 0
    while waiting:
        turn += 1
        served = [source for source in sources for _ in range(serves)][: len(waiting)]
        for source in served:
            earlier = tuple(p.receiver for p in found.values() if p.source == source and p.turn < turn)
            receiver = waiting.pop(0)
            found[receiver] = Pair(receiver, source, turn, earlier)
        done = [pair.receiver for pair in found.values() if pair.turn == turn]
        sources += [receiver for receiver in done if able is None or receiver in able]
    return found
