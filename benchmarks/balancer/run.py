"""The balancer beside its peers, in one run: throughput, trouble, latency. `make bench-balancer`.

Needs nginx with the Lua module and wrk; HAProxy, vllm-router and sglang-router are compared where they are found
(PATH, or $ROUTERS/bin). The balancer under test has core 0, backends and generator core 1. Last comes what was
promised, with what was seen of it; the exit code is 1 when a promise was broken (never with --quick: too short).
Usage: run.py [--quick] [--rounds N] [--seconds N] [--only throughput,kill,...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import latency
import throughput
import trouble
from contenders import OTHER_CORE, Contender, Running, available, free_ports

from fleetctl.fleet.schema import Affinity

HERE = "fleetctl"
PARTS = ("throughput", "kill", "frozen", "membership", "latency", "own")


@dataclass
class Promises:
    """What the balancer has to hold in this run, and whether it did."""

    lines: list[tuple[bool, str]] = field(default_factory=list)

    def add(self, kept: bool, words: str) -> None:
        self.lines.append((kept, words))

    @property
    def broken(self) -> bool:
        return not all(kept for kept, _ in self.lines)

    def show(self) -> None:
        print("\npromised")
        for kept, words in self.lines:
            print(f"  {'kept  ' if kept else 'BROKEN'}  {words}")


@contextmanager
def started(contender: Contender) -> Iterator[Running]:
    running = contender.start()
    try:
        yield running
    finally:
        running.stop()


def show_throughput(
    promises: Promises, contenders: list[Contender], folder: Path, ports: list[int], rounds: int, seconds: int
) -> None:
    print(f"\nthroughput: POST, 16 connections, medians of {rounds} interleaved rounds of {seconds} s")
    print(f"{'':22}{'req/s':>9}{'of report':>11}{'p50 ms':>9}{'CPU us/req':>12}{'generator idle':>16}{'errors':>8}")
    found = throughput.run(contenders, folder, ports, rounds, seconds)
    base = found["report"].rate
    for name, row in found.items():
        print(
            f"{name:22}{row.rate:9.0f}{row.rate / base:11.2f}{row.p50_ms:9.2f}{row.cpu_us:12.1f}"
            f"{row.idle:15.0%} {row.errors:8.0f}"
        )
    ours = found[HERE]
    promises.add(ours.rate >= 0.4 * base, f"rate: {ours.rate / base:.2f} of the report's (floor 0.4, goal 0.6)")
    for name in ("vllm-router", "sglang-router"):
        if name in found:
            promises.add(ours.rate > found[name].rate, f"rate: {ours.rate / found[name].rate:.1f} times {name}")
    least = min(row.idle for row in found.values())
    promises.add(least >= 0.2, f"the generator was idle for at least {least:.0%} of the time (20)")
    promises.add(ours.errors == 0, f"{ours.errors:.0f} errors under that load")


def show_kill(promises: Promises, contenders: list[Contender], backends: trouble.Backends) -> None:
    print("\ntwo of 16 killed with -9 under load, restarted 6 s later; 64 requests and streams were in flight")
    print(
        f"{'':22}{'held':>6}{'JSON 502':>9}{'cut':>5}{'counted':>9}{'odd':>5}{'errors after':>14}{'of':>7}{'moved':>8}"
        f"{'needlessly':>12}{'home after 15 s':>17}"
    )
    for contender in contenders:
        with started(contender) as running:
            row = asyncio.run(trouble.kill_two(contender, running, backends))
        held, counted = ("-" if number is None else str(number) for number in (row.held, row.counted))
        print(
            f"{contender.name:22}{held:>6}{row.refused:9}{row.cut:5}{counted:>9}{row.odd:5}{row.late_errors:14}"
            f"{row.sent:7}{row.moved:8.1%}{row.wrong:12}{row.back:17.1%}",
            flush=True,
        )
        if contender.name == HERE:
            promises.add(row.late_errors == 0, f"two killed: {row.late_errors} errors in {row.sent} later requests")
            promises.add(
                row.held == row.refused + row.cut and row.counted == row.cut and not row.odd,
                f"two killed: {row.held} in flight, {row.refused} ended in a JSON 502, {row.cut} in a cut, "
                f"{row.counted} counted",
            )
            promises.add(row.wrong == 0, f"two killed: {row.wrong} sessions moved whose home lives")
            promises.add(
                row.back == 1, f"two killed: {row.back:.0%} of sessions at home again 15 s after they came back"
            )


def show_frozen(promises: Promises, contenders: list[Contender], backends: trouble.Backends) -> None:
    print("\none of 16 frozen (SIGSTOP): its own sessions, 10 requests a second, 3 s patience")
    print(f"{'':22}{'failed in 5 s':>14}{'failed later':>14}{'of':>5}{'home again after s':>20}")
    for contender in contenders:
        with started(contender) as running:
            row = asyncio.run(trouble.freeze(contender, running, backends))
        print(f"{contender.name:22}{row.early:14}{row.later:14}{row.sent_later:5}{row.home:20.1f}", flush=True)
        if contender.name == HERE:
            promises.add(row.later == 0, f"one frozen: {row.later} of {row.sent_later} failed after 5 s")
            promises.add(row.home <= 15, f"one frozen: home again {row.home:.1f} s after it thawed (15)")


def show_membership(promises: Promises, contenders: list[Contender]) -> None:
    print("\n20 membership changes under 24 kept-alive clients and 12 streams (others: the same number of reloads)")
    print(f"{'':22}{'POSTs':>8}{'lost':>6}{'streams':>9}{'cut':>5}")
    for contender in contenders:
        with started(contender) as running:
            row = asyncio.run(trouble.membership(contender, running))
        print(f"{contender.name:22}{row.posts:8}{row.lost:6}{row.streams:9}{row.cut:5}", flush=True)
        if contender.name == HERE:
            promises.add(row.lost == 0, f"20 changes: {row.lost} of {row.posts} POSTs lost")
            promises.add(row.cut == 0, f"20 changes: {row.cut} of {row.streams} streams cut")


def show_latency(
    promises: Promises, contenders: list[Contender], ports: list[int], rounds: int, seconds: float
) -> None:
    print(
        "\nadded by the balancer at 1,000 requests/s, and to the chunks of 32 streams: "
        f"medians of {rounds} interleaved rounds of {seconds:.0f} s"
    )
    print(f"{'':22}{'p50 ms':>9}{'added':>8}{'p99 ms':>9}{'chunk p50':>11}{'chunk p99':>11}{'added':>8}")
    found: dict[str, list[tuple[float, ...]]] = {}
    with ExitStack() as stack:
        at = {"direct": ports[0], **{each.name: stack.enter_context(started(each)).port for each in contenders}}
        for _ in range(rounds):
            for name, port in at.items():
                found.setdefault(name, []).append(measure_latency(port, seconds))
    rows = {name: [statistics.median(column) for column in zip(*each, strict=True)] for name, each in found.items()}
    direct = rows["direct"]
    for name, mine in rows.items():
        print(
            f"{name:22}{mine[0]:9.2f}{mine[0] - direct[0]:8.2f}{mine[1]:9.2f}{mine[2]:11.2f}{mine[3]:11.2f}"
            f"{mine[3] - direct[3]:8.2f}",
            flush=True,
        )
    ours = rows[HERE]
    promises.add(ours[0] - direct[0] < 0.5, f"added p50 at 1,000 requests/s: {ours[0] - direct[0]:.2f} ms (0.5)")
    promises.add(ours[3] - direct[3] < 2, f"chunks of 32 streams at p99: {ours[3] - direct[3]:.2f} ms later (2)")


def measure_latency(port: int, seconds: float) -> tuple[float, float, float, float]:
    taken = asyncio.run(latency.paced(port, 1000, seconds))
    late = asyncio.run(latency.lateness(port))
    return (
        latency.p50(taken) * 1000,
        latency.percentile(taken, 0.99) * 1000,
        latency.p50(late) * 1000,
        latency.percentile(late, 0.99) * 1000,
    )


def show_own(promises: Promises, fleetctl: Contender, rendezvous: Contender | None, backends: trouble.Backends) -> None:
    for contender, affinity in ((fleetctl, Affinity.MD5_MOD), (rendezvous, Affinity.RENDEZVOUS)):
        if contender is None:
            continue
        with started(contender) as running:
            for count in (300, 10_000):
                wrong, chi = asyncio.run(trouble.mapping(contender, running, affinity, count))
                promises.add(
                    wrong == 0,
                    f"{count} sessions, {affinity.value}: {wrong} not placed alike by Python, Lua and X-Upstream-Addr; "
                    f"chi-square {chi:.1f} (15 degrees of freedom: 7.3 to 25.0 in 90 %)",
                )
    with started(fleetctl) as running:
        whole, moved = asyncio.run(trouble.drain(fleetctl, running))
        promises.add(whole and moved, f"drain in a stream: it ends whole: {whole}; its session moved: {moved}")
        kept = asyncio.run(trouble.slow_health(fleetctl, running))
        promises.add(kept == 1, f"/health in 8 s while tokens flow: {kept:.0%} of its sessions stay")
    short = Contender(HERE, fleetctl.folder.parent / "short", fleetctl.backends, {"read_timeout": 2})
    with started(short) as running:
        status, runs = asyncio.run(trouble.times_out(running, backends))
        promises.add((status, runs) == (504, 1), f"a request that times out: {status}, ran {runs} time(s)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--without", default="", help="names of peers to leave out")
    options = parser.parse_args()
    parts = options.only.split(",")
    rounds, seconds = (1, 2) if options.quick else (options.rounds, options.seconds)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {OTHER_CORE})
    folder = Path(tempfile.mkdtemp(prefix="fleetctl-bench-"))
    folder.chmod(0o755)
    ports = free_ports(16)
    contenders = [each for each in available(folder, ports) if each.name not in options.without.split(",")]
    fleetctl = next(each for each in contenders if each.name == HERE)
    rendezvous = next((each for each in contenders if each.name == f"{HERE},rendezvous"), None)
    print("compared:", ", ".join(each.name for each in contenders))
    promises, backends = Promises(), None
    try:
        if "throughput" in parts:
            show_throughput(promises, contenders, folder, ports, rounds, seconds)
        one_each = [each for each in contenders if "," not in each.name]
        backends = trouble.Backends(folder, ports)
        if "kill" in parts:
            show_kill(promises, one_each, backends)
        if "frozen" in parts:
            show_frozen(promises, one_each, backends)
        if "membership" in parts:
            show_membership(promises, [each for each in one_each if each.name in ("report", "nginx-hash", HERE)])
        if "latency" in parts:
            show_latency(promises, one_each, ports, 1 if options.quick else 5, 3)
        if "own" in parts:
            show_own(promises, fleetctl, rendezvous, backends)
    finally:
        if backends is not None:
            backends.stop()
        shutil.rmtree(folder, ignore_errors=True)
    promises.show()
    return 1 if promises.broken and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
