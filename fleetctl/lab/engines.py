"""What can stand behind the instances of a lab: the simulated engine, or a real vLLM on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

GIB = 1 << 30
Changes = Mapping[str, Mapping[str, object]]


class Engine(str, Enum):
    """`simulated`: no model runs; faults by command. `vllm-cpu`: vLLM itself, with a model that was never trained."""

    SIMULATED = "simulated"
    VLLM_CPU = "vllm-cpu"


# Bytes of /var/lib/docker: the real engine's image, once more while it is loaded, and the old services'.
DOCKER_SIZE = {Engine.SIMULATED: 3 * GIB, Engine.VLLM_CPU: 14 * GIB}

# What the lab's inventory says otherwise than the fleet's, by section: flags of the engine that the CPU has no other
# value for; one instance a machine (2.7 GB each), with the one device that goes with them; what the model is.
CHANGES: Mapping[Engine, Changes] = {
    Engine.SIMULATED: {},
    Engine.VLLM_CPU: {
        "engine": {
            "tensor-parallel-size": 1,
            "block-size": 32,
            "enforce-eager": True,
            "quantization": None,
        },
        "speculative": {"tokens": 0},
        "instances": {"per_machine": 1, "devices": 1},
        "model": {"random_weights": True},
    },
}
