"""The engines' own counters before and after a run: a cross-check of what the client saw. Pure.

A counter that fell was restarted with its engine: then there is no difference to speak of, and None is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TTFT = "vllm:time_to_first_token_seconds"
QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PREEMPTIONS = "vllm:num_preemptions_total"
FINISHED = "vllm:request_success_total"
WANTED = (
    QUERIES,
    HITS,
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED,
    PREEMPTIONS,
    FINISHED,
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    f"{TTFT}_sum",
    f"{TTFT}_count",
)
PATTERN = "^(" + "|".join(WANTED) + ")[ {]"
LINE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})? ([0-9.eE+-]+|NaN)$")


def parse(text: str, wanted: tuple[str, ...] = WANTED) -> dict[str, float]:
    """Sums over labels of the counters that are of use; what the page does not have is not in the answer."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = LINE.match(line)
        if match and match[1] in wanted:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def change(end: Mapping[str, Any]) -> dict[str, float] | None:
    """Of a run's last line: the sum over all instances of after minus before; None where one is missing or fell."""
    return total(by_instance(end).values()) or None


def by_instance(end: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """After minus before, by instance; nothing where one is missing or fell."""
    before, after = end.get("counters_before"), end.get("counters_after")
    if not before or not after or set(before) != set(after):
        return {}
    grown = {
        instance: {name: value - old.get(name, 0.0) for name, value in after[instance].items()}
        for instance, old in before.items()
    }
    return {} if any(value < 0 for own in grown.values() for value in own.values()) else grown


def total(changes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Several changes as one."""
    found: dict[str, float] = {}
    for one in changes:
        for name, value in one.items():
            found[name] = found.get(name, 0.0) + value
    return found


def mean(changed: Mapping[str, float], histogram: str) -> float | None:
    """The mean of what a histogram took in between."""
    count = changed.get(f"{histogram}_count", 0.0)
    return changed[f"{histogram}_sum"] / count if count else None


@dataclass(frozen=True)
class Acceptance:
    """Of draft tokens: the share that held, and the mean number of tokens a step gave."""

    rate: float
    length: float


def acceptance(changed: Mapping[str, float]) -> Acceptance | None:
    """None where nothing was drafted: not 0 %."""
    drafted, drafts = changed.get(DRAFT_TOKENS, 0.0), changed.get(DRAFTS, 0.0)
    if not drafted or not drafts:
        return None
    accepted = changed.get(ACCEPTED, 0.0)
    return Acceptance(accepted / drafted, 1 + accepted / drafts)


def balancer_requests(text: str) -> int | None:
    """Requests that the balancer has sent to backends so far; None when the page is not its own."""
    found = re.findall(r'^fleet_requests_total\{[^}]*backend="[^"]+"[^}]*\} ([0-9.e+]+)$', text, flags=re.M)
    return int(sum(float(one) for one in found)) if found or "fleet_ttfb_seconds_count" in text else None
