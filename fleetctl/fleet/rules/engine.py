"""Rules about the flags of `vllm serve`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fleetctl.fleet import flag_types
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.rules.rule import Complaint, Severity, rule

HIGHEST_MEMORY = 0.92
MOST_CAPTURED = 16
BEST_MEASURED = 3
# Flags that choose devices by hand.
DEVICE_FLAGS = ("device-ids",)


@rule("flag-type", "3.4", Severity.ERROR)
def flag_type(fleet: Fleet) -> Iterator[Complaint]:
    """A value vLLM cannot read ends the engine only after minutes."""
    for name, message in flag_types.problems(fleet.engine):
        yield Complaint(f"engine.{name}", message, f"correct engine.{name}")


@rule("disable-log-requests-removed", "3.4", Severity.ERROR)
def disable_log_requests_removed(fleet: Fleet) -> Iterator[Complaint]:
    """The flag is gone since 0.12: vLLM ends with `unrecognized arguments`."""
    if "disable-log-requests" in fleet.engine:
        fix = "leave it out, or write enable-log-requests: false"
        yield Complaint("engine.disable-log-requests", "vllm serve has no such flag any more", fix)


@rule("swap-space-removed", "3.4", Severity.ERROR)
def swap_space_removed(fleet: Fleet) -> Iterator[Complaint]:
    """The flag is gone: vLLM ends with `unrecognized arguments`."""
    if "swap-space" in fleet.engine:
        yield Complaint("engine.swap-space", "vllm serve has no such flag any more", "leave it out")


@rule("shutdown-timeout-zero", "0.2", Severity.WARNING)
def shutdown_timeout_zero(fleet: Fleet) -> Iterator[Complaint]:
    """With vLLM's default of 0, SIGTERM aborts every request in flight at once."""
    if not fleet.engine.get("shutdown-timeout"):
        yield Complaint("engine.shutdown-timeout", "a stopped engine aborts its requests", "shutdown-timeout: 30")


@rule("shutdown-timeout-long", "0.2", Severity.WARNING)
def shutdown_timeout_long(fleet: Fleet) -> Iterator[Complaint]:
    """Instances are drained before they are stopped: a stop that outlasts the drain keeps machines waiting twice."""
    given, drain = fleet.engine.get("shutdown-timeout"), fleet.inventory.rollout.drain_timeout
    if isinstance(given, int) and given > drain:
        message = f"{given} s is longer than rollout.drain_timeout ({drain:g} s)"
        yield Complaint("engine.shutdown-timeout", message, "shutdown-timeout: 30")


@rule("block-size-ignored", "0.13", Severity.WARNING)
def block_size_ignored(fleet: Fleet) -> Iterator[Complaint]:
    """Ascend forces 128, and hybrid Qwen models more: the flag changes nothing."""
    given = fleet.engine.get("block-size")
    if given is not None:
        yield Complaint("engine.block-size", f"{given} is ignored on Ascend, which uses 128 or more", "leave it out")


@rule("gpu-memory-utilization-high", "0.24", Severity.WARNING)
def gpu_memory_utilization_high(fleet: Fleet) -> Iterator[Complaint]:
    """The vendor documents 0.85 to 0.9: more leads to out-of-memory, it does not prevent it."""
    given = fleet.engine.get("gpu-memory-utilization")
    if isinstance(given, int | float) and given > HIGHEST_MEMORY:
        message = f"{given} leaves too little memory for graphs and communication"
        yield Complaint("engine.gpu-memory-utilization", message, "gpu-memory-utilization: 0.9")


@rule("auto-tool-choice-needs-parser", "3.4", Severity.ERROR)
def auto_tool_choice_needs_parser(fleet: Fleet) -> Iterator[Complaint]:
    """vLLM refuses to start with --enable-auto-tool-choice and no --tool-call-parser."""
    if fleet.engine.get("enable-auto-tool-choice") is True and not fleet.engine.get("tool-call-parser"):
        yield Complaint(
            "engine.tool-call-parser", "required by enable-auto-tool-choice", "tool-call-parser: qwen3_coder"
        )


@rule("mtp-tokens-measured", "0.19", Severity.NOTE)
def mtp_tokens_measured(fleet: Fleet) -> Iterator[Complaint]:
    """The first report's own best was MTP=3 (61.0 against 58.7 tokens/s at 4), as upstream's CI uses."""
    if fleet.tokens is not None and fleet.tokens > BEST_MEASURED:
        message = f"{fleet.tokens} tokens were slower than {BEST_MEASURED} when measured; a sweep decides"
        yield Complaint("speculative.tokens", message, f"tokens: {BEST_MEASURED}")


@rule("speculative-tokens", "1.7", Severity.ERROR)
def speculative_tokens(fleet: Fleet) -> Iterator[Complaint]:
    """With K tokens every captured graph size is a multiple of K+1, and K+1 is at most 16."""
    step = (fleet.tokens or 0) + 1
    if step > MOST_CAPTURED:
        message = f"{fleet.tokens} tokens need graphs of {step}, more than {MOST_CAPTURED}"
        yield Complaint("speculative.tokens", message, f"tokens: {BEST_MEASURED}")
    if step <= 2:
        return
    for where, sizes in _capture_sizes(fleet):
        wrong = [one for one in sizes if not isinstance(one, int) or one % step]
        if wrong:
            message = f"{', '.join(map(str, wrong))}: not a multiple of {step} ({fleet.tokens} speculative tokens + 1)"
            fix = f"sizes {', '.join(str(step * factor) for factor in (1, 2, 4, 8))}"
            yield Complaint(where, message, fix)


def _capture_sizes(fleet: Fleet) -> Iterator[tuple[str, list[Any]]]:
    listed = fleet.engine.get("cudagraph-capture-sizes")
    if isinstance(listed, list):
        yield "engine.cudagraph-capture-sizes", listed
    compiled = mapping(fleet.engine.get("compilation-config")).get("cudagraph_capture_sizes")
    if isinstance(compiled, list):
        yield "engine.compilation-config", compiled


def mapping(value: Any) -> dict[str, Any]:
    """A flag that holds JSON, written as a mapping or as text; empty where it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


@rule("devices-typed", "0.11", Severity.ERROR)
def devices_typed(fleet: Fleet) -> Iterator[Complaint]:
    """Device ids differ between instances and device modes; they are computed, never typed."""
    for name in DEVICE_FLAGS:
        if fleet.engine.get(name) is not None:
            yield Complaint(f"engine.{name}", "the same devices for every instance", "leave it out")


@rule("engine-tls", "3.1", Severity.ERROR)
def engine_tls(fleet: Fleet) -> Iterator[Complaint]:
    """Balancer and health checks speak HTTP to instances inside the cluster network; TLS ends at the balancer."""
    for name in ("ssl-keyfile", "ssl-certfile"):
        if fleet.engine.get(name):
            yield Complaint(f"engine.{name}", "instances are asked over HTTP", "use balancer.tls")


@rule("secret-in-engine", "0.3", Severity.ERROR)
def secret_in_engine(fleet: Fleet) -> Iterator[Complaint]:
    """`ps`, `docker inspect` and vLLM's own start-up log show every argument."""
    from fleetctl.fleet.schema import looks_secret

    for name, value in fleet.engine.items():
        if isinstance(value, str) and looks_secret(value):
            yield Complaint(f"engine.{name}", "this looks like a secret", "use secrets")
