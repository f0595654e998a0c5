"""A simulator of `vllm serve` on Ascend NPUs for the lab: it runs no model and touches no hardware.

It answers, logs, fails and ends as vLLM 0.23 does as far as an operator can tell, so that a deployment can
be practised end to end. Python standard library only. `SIM_ROOT` (tests only) is a prefix for /dev,
/usr/local/Ascend, /etc/npu-smi-lab and /run, so that the engine runs beside real devices or without any.
"""

from __future__ import annotations

import os

VERSION = "0.23.0+sim"
BANNER = f"{VERSION} (fleetctl lab simulator: no model is run)"


def rooted(path: str) -> str:
    """An absolute path of the simulated machine, below SIM_ROOT when that is set."""
    return os.environ.get("SIM_ROOT", "") + path


def seconds(name: str, default: float) -> float:
    """A duration from the environment; what does not parse is the default."""
    try:
        return float(os.environ.get(name, default))
    except ValueError:
        return default
