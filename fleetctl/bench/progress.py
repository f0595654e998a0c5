"""How much of a run is done, for whoever waits for it. Pure."""

from __future__ import annotations

from typing import Any

from fleetctl.bench.ab import cells
from fleetctl.bench.rounds import CrossCheck, Round
from fleetctl.bench.scenarios import Affinity, Distribution, Instance, LongContext, Scaling, Sequential, Soak


def share(scenario: Any, measured: int, begun: int, seconds: float) -> float | None:
    """0 to 1; None where nobody can know. `measured`: requests that ended, `begun`: cells, `seconds`: of the run."""
    if isinstance(scenario, Soak):
        return min(1.0, seconds / scenario.seconds)
    if isinstance(scenario, Instance | Scaling):
        planned = len(scenario.users) * (scenario.passes if isinstance(scenario, Scaling) else 1)
        return max(0.0, begun - 0.5) / planned  # the one that is under way is half done, on average
    asked = _requests(scenario)
    return min(1.0, measured / asked) if asked else None


def _requests(scenario: Any) -> int:
    """That are measured in all; 0 where that is not fixed beforehand."""
    if isinstance(scenario, Distribution):
        return scenario.keys
    if isinstance(scenario, Affinity):
        return scenario.sessions * (scenario.serial + scenario.at_once)
    if isinstance(scenario, Sequential):
        return scenario.requests
    if isinstance(scenario, LongContext):
        return len(scenario.lengths) * scenario.times
    if isinstance(scenario, Round):
        return len(cells(scenario.tokens, scenario.lengths)) * len(scenario.arms) * scenario.times
    return scenario.requests * scenario.times if isinstance(scenario, CrossCheck) else 0
