"""Rules about the environment of the containers (facts/ascend-vllm.md 1.6)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.rules.rule import Complaint, Severity, rule, variable

BALANCER_KEEPALIVE = 4.0
"""Seconds that the balancer keeps an idle connection to an instance that says nothing about its own (5 s)."""
ENGINE_KEEPALIVE = 5.0
"""uvicorn's own default, seconds."""
ENGINE_READY_TIMEOUT = 600
"""vLLM's own default of VLLM_ENGINE_READY_TIMEOUT_S, seconds."""

DEVICE_VARIABLES = (
    "ASCEND_RT_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "ASCEND_DEVICE_ID",
    "CUDA_VISIBLE_DEVICES",
    "NPU_VISIBLE_DEVICES",
)
OBSOLETE = {
    "VLLM_USE_V1": "the V0 engine is gone",
    "VLLM_ASCEND_ENABLE_FLASHCOMM1": "moved to --additional-config in 0.23",
    "VLLM_ASCEND_ENABLE_CONTEXT_PARALLEL": "moved to --additional-config in 0.23",
    "SOC_VERSION": "only builds read it",
}


@rule("visible-devices-typed", "0.11", Severity.ERROR)
def visible_devices_typed(fleet: Fleet) -> Iterator[Complaint]:
    """Privileged containers need host ids, mapped ones container-relative ids: they are computed, never typed."""
    for name in DEVICE_VARIABLES:
        if variable(fleet, name) is not None:
            yield Complaint(f"instances.env.{name}", "would name the same devices for every instance", "leave it out")


@rule("keepalive-mismatch", "0.6", Severity.ERROR)
def keepalive_mismatch(fleet: Fleet) -> Iterator[Complaint]:
    """An instance that closes idle connections before the balancer does answers 502 at random."""
    name = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
    given = _number(variable(fleet, name), ENGINE_KEEPALIVE)
    if given is None or given <= BALANCER_KEEPALIVE:
        message = f"must be longer than the {BALANCER_KEEPALIVE:g} s of the balancer, got {variable(fleet, name)}"
        yield Complaint(f"instances.env.{name}", message, f'{name}: "120"')


@rule("engine-ready-timeout-short", "1.8", Severity.WARNING)
def engine_ready_timeout_short(fleet: Fleet) -> Iterator[Complaint]:
    """vLLM gives up after 600 s on its own; it should be as patient as the rollout is."""
    name, wanted = "VLLM_ENGINE_READY_TIMEOUT_S", fleet.inventory.rollout.start_timeout
    given = _number(variable(fleet, name), ENGINE_READY_TIMEOUT)
    if given is None or given < wanted:
        message = f"{given if given is None else f'{given:g}'} s is less than rollout.start_timeout ({wanted:g} s)"
        yield Complaint(f"instances.env.{name}", message, f'{name}: "{wanted:.0f}"')


@rule("engine-death-keepalive", "1.6", Severity.ERROR)
def engine_death_keepalive(fleet: Fleet) -> Iterator[Complaint]:
    """The server has to die with its engine, or systemd never restarts it."""
    name = "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"
    if variable(fleet, name) not in (None, "", "0"):
        yield Complaint(f"instances.env.{name}", "keeps a dead engine's server running", "leave it out")


@rule("dev-mode-set", "1.6", Severity.ERROR)
def dev_mode_set(fleet: Fleet) -> Iterator[Complaint]:
    """Development mode opens /collective_rpc and /sleep to anyone who reaches the port."""
    name = "VLLM_SERVER_DEV_MODE"
    if variable(fleet, name) not in (None, "", "0"):
        yield Complaint(f"instances.env.{name}", "opens unguarded control routes", "leave it out")


@rule("internal-port-variable", "1.6", Severity.WARNING)
def internal_port_variable(fleet: Fleet) -> Iterator[Complaint]:
    """VLLM_PORT and VLLM_HOST_IP are internal, not the API's."""
    for name in ("VLLM_PORT", "VLLM_HOST_IP"):
        if variable(fleet, name) is not None:
            yield Complaint(f"instances.env.{name}", "is not the port or address of the API", "use instances.port")


@rule("allocator-conflict", "1.6", Severity.ERROR)
def allocator_conflict(fleet: Fleet) -> Iterator[Complaint]:
    """expandable_segments goes neither with max_split_size_mb, garbage_collection_threshold nor sleep mode."""
    name = "PYTORCH_NPU_ALLOC_CONF"
    settings = (variable(fleet, name) or "").replace(" ", "")
    if "expandable_segments:true" not in settings.lower():
        return
    for other in ("max_split_size_mb", "garbage_collection_threshold"):
        if other in settings:
            yield Complaint(
                f"instances.env.{name}", f"expandable_segments does not go with {other}", "keep one of them"
            )
    if fleet.engine.get("enable-sleep-mode") is True:
        fix = "leave out enable-sleep-mode"
        yield Complaint(f"instances.env.{name}", "expandable_segments does not go with enable-sleep-mode", fix)


@rule("obsolete-variable", "1.6", Severity.WARNING)
def obsolete_variable(fleet: Fleet) -> Iterator[Complaint]:
    """Variables that the engine no longer reads promise what they do not do."""
    for name, reason in OBSOLETE.items():
        if variable(fleet, name) is not None:
            yield Complaint(f"instances.env.{name}", reason, "leave it out")


@rule("secret-in-environment", "0.3", Severity.ERROR)
def secret_in_environment(fleet: Fleet) -> Iterator[Complaint]:
    """`docker inspect` shows the environment of every container."""
    from fleetctl.fleet.schema import looks_secret

    for name, value in fleet.env.items():
        if looks_secret(value) or re.search(r"(^|_)(API_KEY|TOKEN|SECRET|PASSWORD)$", name):
            yield Complaint(f"instances.env.{name}", "looks like a secret, which docker inspect shows", "leave it out")


def _number(text: str | None, default: float) -> float | None:
    """The number a variable holds, None where it holds no number."""
    if text is None:
        return default
    return float(text) if re.fullmatch(r"\d{1,9}", text.strip()) else None
