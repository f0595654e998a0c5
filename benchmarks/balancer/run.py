"""The balancer beside its peers, in one run: throughput, trouble, latency. `make bench-balancer`.

Needs nginx with the Lua module and wrk; HAProxy, vllm-router and sglang-router are compared where they are found
(PATH, or $ROUTERS/bin). The balancer under test has core 0, backends and generator core 1.
Usage: run.py [--quick] [--rounds N] [--seconds N] [--only throughput,kill,...]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import latency
import throughput
import trouble
from contenders import OTHER_CORE, Contender, Running, available, free_ports

PARTS = ("throughput", "kill", "frozen", "membership", "latency", "own")


@contextmanager
def started(contender: Contender) -> Iterator[Running]:
    running = contender.start()
    try:
        yield running
    finally:
        running.stop()


def show_throughput(contenders: list[Contender], folder: Path, ports: list[int], rounds: int, seconds: int) -> None:
    print(f"\nthroughput: POST, 16 connections, medians of {rounds} interleaved rounds of {seconds} s")
    print(f"{'':22}{'req/s':>9}{'of report':>11}{'p50 ms':>9}{'CPU us/req':>12}{'generator idle':>16}{'errors':>8}")
    found = throughput.run(contenders, folder, ports, rounds, seconds)
    base = found["report"].rate
    for name, row in found.items():
        print(
            f"{name:22}{row.rate:9.0f}{row.rate / base:11.2f}{row.p50_ms:9.2f}{row.cpu_us:12.1f}"
            f"{row.idle:15.0%} {row.errors:8.0f}"
        )


def show_kill(contenders: list[Contender], backends: trouble.Backends) -> None:
    print("\ntwo of 16 killed with -9 under load, restarted 6 s later")
    print(
        f"{'':22}{'held':>6}{'broken':>8}{'errors after':>14}{'of':>7}{'moved':>8}{'needlessly':>12}"
        f"{'home after 15 s':>17}"
    )
    for contender in contenders:
        with started(contender) as running:
            row = asyncio.run(trouble.kill_two(contender, running, backends))
        held = "-" if row.held is None else str(row.held)
        print(
            f"{contender.name:22}{held:>6}{row.broken:8}{row.late_errors:14}{row.sent:7}{row.moved:8.1%}"
            f"{row.wrong:12}{row.back:17.1%}",
            flush=True,
        )


def show_frozen(contenders: list[Contender], backends: trouble.Backends) -> None:
    print("\none of 16 frozen (SIGSTOP): its own sessions, 10 requests a second, 3 s patience")
    print(f"{'':22}{'failed in 5 s':>14}{'failed later':>14}{'of':>5}{'home again after s':>20}")
    for contender in contenders:
        with started(contender) as running:
            row = asyncio.run(trouble.freeze(contender, running, backends))
        print(f"{contender.name:22}{row.early:14}{row.later:14}{row.sent_later:5}{row.home:20.1f}", flush=True)


def show_membership(contenders: list[Contender]) -> None:
    print("\n20 membership changes under 24 kept-alive clients and 12 streams (others: the same number of reloads)")
    print(f"{'':22}{'POSTs':>8}{'lost':>6}{'streams':>9}{'cut':>5}")
    for contender in contenders:
        with started(contender) as running:
            row = asyncio.run(trouble.membership(contender, running))
        print(f"{contender.name:22}{row.posts:8}{row.lost:6}{row.streams:9}{row.cut:5}", flush=True)


def show_latency(contenders: list[Contender], ports: list[int], seconds: float) -> None:
    print(f"\nadded by the balancer at 1,000 requests/s ({seconds:.0f} s), and to the chunks of 32 streams")
    print(f"{'':22}{'p50 ms':>9}{'added':>8}{'p99 ms':>9}{'chunk p50':>11}{'chunk p99':>11}{'added':>8}")
    rows = {}
    for name, contender in [("direct", None), *((each.name, each) for each in contenders)]:
        if contender is None:
            rows[name] = measure_latency(ports[0], seconds)
        else:
            with started(contender) as running:
                rows[name] = measure_latency(running.port, seconds)
        mine, direct = rows[name], rows["direct"]
        print(
            f"{name:22}{mine[0]:9.2f}{mine[0] - direct[0]:8.2f}{mine[1]:9.2f}{mine[2]:11.2f}{mine[3]:11.2f}"
            f"{mine[3] - direct[3]:8.2f}",
            flush=True,
        )


def measure_latency(port: int, seconds: float) -> tuple[float, float, float, float]:
    taken = asyncio.run(latency.paced(port, 1000, seconds))
    late = asyncio.run(latency.lateness(port))
    return (
        latency.p50(taken) * 1000,
        latency.percentile(taken, 0.99) * 1000,
        latency.p50(late) * 1000,
        latency.percentile(late, 0.99) * 1000,
    )


def show_own(fleetctl: Contender, backends: trouble.Backends) -> None:
    print("\nfleetctl alone")
    with started(fleetctl) as running:
        wrong, chi = asyncio.run(trouble.mapping(fleetctl, running, 300))
        print(f"  300 sessions: {wrong} placed differently by Python, Lua and X-Upstream-Addr; chi-square {chi:.1f}")
        wrong, chi = asyncio.run(trouble.mapping(fleetctl, running, 10_000))
        print(f"  10,000 sessions: {wrong}; chi-square {chi:.1f} (15 degrees of freedom: 7.3 to 25.0 in 90 %)")
        whole, moved = asyncio.run(trouble.drain(fleetctl, running))
        print(f"  drain during a stream: ends whole: {whole}; its session elsewhere meanwhile: {moved}")
        kept = asyncio.run(trouble.slow_health(fleetctl, running))
        print(f"  /health in 8 s while tokens flow: {kept:.0%} of its sessions stay")
    short = Contender("fleetctl", fleetctl.folder.parent / "short", fleetctl.backends, {"read_timeout": 2})
    with started(short) as running:
        status, runs = asyncio.run(trouble.times_out(running, backends))
        print(f"  a request that times out: {status}, ran {runs} time(s)")


def main() -> None:
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
    fleetctl = next(each for each in contenders if each.name == "fleetctl")
    print("compared:", ", ".join(each.name for each in contenders))
    backends = None
    try:
        if "throughput" in parts:
            show_throughput(contenders, folder, ports, rounds, seconds)
        one_each = [each for each in contenders if "," not in each.name]
        backends = trouble.Backends(folder, ports)
        if "kill" in parts:
            show_kill(one_each, backends)
        if "frozen" in parts:
            show_frozen(one_each, backends)
        if "membership" in parts:
            show_membership([each for each in one_each if each.name in ("report", "nginx-hash", "fleetctl")])
        if "latency" in parts:
            show_latency(one_each, ports, 2 if options.quick else 8)
        if "own" in parts:
            show_own(fleetctl, backends)
    finally:
        if backends is not None:
            backends.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
