"""Rules about containers and devices."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.fleet import allocation
from fleetctl.fleet.excerpt import spoken
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.rules.rule import Complaint, Severity, rule

MIB = 1 << 20
UNITS = {"k": 1 << 10, "m": MIB, "g": 1 << 30}
DOCUMENTED_SHM = 1 << 30


def size(text: str) -> int:
    """Bytes of a Docker size such as `16g`."""
    return int(text[:-1]) * UNITS[text[-1].lower()]


@rule("shm-size-missing", "0.10", Severity.ERROR)
def shm_size_missing(fleet: Fleet) -> Iterator[Complaint]:
    """vLLM's message queue needs over 100 MiB of shared memory; Docker gives 64 MiB, vendor pages 1 GiB."""
    given = fleet.inventory.instances.shm_size
    if size(given) < DOCUMENTED_SHM:
        yield Complaint("instances.shm_size", f"{given} is less than the documented 1g", "shm_size: 16g")


@rule("allocation-overlap", "0.25", Severity.ERROR)
def allocation_overlap(fleet: Fleet) -> Iterator[Complaint]:
    """Two instances on one device restart each other for ever; a device that does not exist never starts."""
    for problem in allocation.problems(fleet.inventory):
        yield Complaint(spoken(problem.path), problem.message, "give each instance devices of its own")


@rule("parallel-size-mismatch", "0.25", Severity.ERROR)
def parallel_size_mismatch(fleet: Fleet) -> Iterator[Complaint]:
    """vLLM takes tensor x pipeline x data parallel devices; an instance has exactly `instances.devices`."""
    sizes = {
        name: fleet.engine.get(f"{name}-parallel-size") or 1
        for name in ("tensor", "pipeline", "data", "prefill-context")
    }
    needed = 1
    for factor in sizes.values():
        if isinstance(factor, bool) or not isinstance(factor, int):
            return
        needed *= factor
    has = fleet.inventory.instances.devices
    if needed != has:
        product = " x ".join(f"{name} {factor}" for name, factor in sizes.items() if factor != 1) or "tensor 1"
        fix = f"tensor-parallel-size: {has}"
        yield Complaint("engine.tensor-parallel-size", f"{product} takes {needed} devices, an instance has {has}", fix)


@rule("cpuset-off", "0.16", Severity.WARNING)
def cpuset_off(fleet: Fleet) -> Iterator[Complaint]:
    """vllm-ascend binds CPUs on ARM only: on x86_64 instances share all CPUs unless Docker pins them."""
    if fleet.inventory.instances.cpuset == "off":
        yield Complaint("instances.cpuset", "on x86_64 nothing keeps instances off each other's CPUs", "cpuset: auto")


@rule("start-timeout-short", "1.8", Severity.WARNING)
def start_timeout_short(fleet: Fleet) -> Iterator[Complaint]:
    """Public loads took over 9 minutes, and a cold compile over 30: fail at once on dead, not on slow."""
    given = fleet.inventory.rollout.start_timeout
    if given < 600:
        yield Complaint("rollout.start_timeout", f"{given:g} s is less than a cold start takes", "start_timeout: 1800")
