"""The engine flags that are typed: a wrong value is found in the inventory, not after minutes of loading a
model.

Source: facts/vllm-0.32/serve-flags.tsv and vLLM's argument groups. A flag that is not here is passed on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

WHOLE = {
    "api-server-count": 1,
    "block-size": 1,
    "data-parallel-size": 1,
    "decode-context-parallel-size": 1,
    "max-logprobs": -1,
    "max-loras": 1,
    "max-num-seqs": 1,
    "pipeline-parallel-size": 1,
    "renderer-num-workers": 1,
    "seed": 0,
    "shutdown-timeout": 0,
    "stream-interval": 1,
    "tensor-parallel-size": 1,
}
# vLLM reads these also as `128k`.
COUNTS = frozenset({"max-model-len", "max-num-batched-tokens"})
NUMBERS = {
    "gpu-memory-utilization": (0.0, 1.0),
    "cpu-offload-gb": (0.0, 1e6),
    "mm-processor-cache-gb": (0.0, 1e6),
}
TRUTHS = frozenset(
    {
        "async-scheduling",
        "disable-custom-all-reduce",
        "disable-fastapi-docs",
        "disable-log-stats",
        "disable-sliding-window",
        "disable-uvicorn-access-log",
        "enable-auto-tool-choice",
        "enable-chunked-prefill",
        "enable-expert-parallel",
        "enable-force-include-usage",
        "enable-log-requests",
        "enable-prefix-caching",
        "enable-prompt-tokens-details",
        "enable-request-id-headers",
        "enable-sleep-mode",
        "enforce-eager",
        "language-model-only",
        "trust-remote-code",
    }
)
WORDS = frozenset({"chat-template", "quantization", "reasoning-parser", "revision", "tokenizer", "tool-call-parser"})
CHOICES = {
    "distributed-executor-backend": ("external_launcher", "mp", "ray", "uni"),
    "dtype": ("auto", "bfloat16", "float", "float16", "float32", "half"),
    "tokenizer-mode": ("auto", "deepseek_v32", "hf", "mistral", "slow"),
}
MAPPINGS = frozenset({"additional-config", "compilation-config", "hf-overrides", "limit-mm-per-prompt"})

_COUNT = re.compile(r"^\d+(\.\d+)?[kKmMgG]?$|^auto$")


def problems(engine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and message of each flag (canonical names) whose value cannot be what vLLM expects."""
    for name, value in engine.items():
        message = None if value is None else _problem(name, value)
        if message:
            yield name, message


def _problem(name: str, value: Any) -> str | None:
    for known, check in _CHECKS:
        if name in known:
            return check(name, value)
    return None


def _whole(name: str, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"expected a whole number, got {_shown(value)}"
    return f"must be at least {WHOLE[name]}, got {value}" if value < WHOLE[name] else None


def _count(name: str, value: Any) -> str | None:
    if isinstance(value, str) and _COUNT.match(value):
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        return f"expected a whole number of tokens, got {_shown(value)}"
    return None if value > 0 or (value == -1 and name == "max-model-len") else f"must be at least 1, got {value}"


def _number(name: str, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"expected a number, got {_shown(value)}"
    low, high = NUMBERS[name]
    return None if low <= value <= high else f"must be between {low:g} and {high:g}, got {value}"


def _truth(name: str, value: Any) -> str | None:
    return None if isinstance(value, bool) else f"expected true or false, got {_shown(value)}"


def _word(name: str, value: Any) -> str | None:
    return None if isinstance(value, str) and value else f"expected text, got {_shown(value)}"


def _choice(name: str, value: Any) -> str | None:
    if value in CHOICES[name] or (name == "distributed-executor-backend" and "." in str(value)):
        return None
    return f"expected one of {', '.join(CHOICES[name])}, got {_shown(value)}"


def _mapping(name: str, value: Any) -> str | None:
    if isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{")):
        return None
    # `-O3`, the short form of a compilation level.
    if name == "compilation-config" and isinstance(value, int) and not isinstance(value, bool):
        return None
    return f"expected a mapping of keys, got {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    return f'"{text if len(text) <= 60 else text[:57] + "..."}"'


_CHECKS: tuple[tuple[Any, Callable[[str, Any], str | None]], ...] = (
    (WHOLE, _whole),
    (COUNTS, _count),
    (NUMBERS, _number),
    (TRUTHS, _truth),
    (WORDS, _word),
    (CHOICES, _choice),
    (MAPPINGS, _mapping),
)
