"""Model and image to machines beside scp, plain rsync, Ansible's copy and `docker save | ssh docker load`.

    python benchmarks/distribution/bench.py [--quick] [--rounds 3] [--only one,fan,idle,image]

Machines are a lab's, made for this and gone afterwards; what each may send is shaped by tbf inside its own namespace.
Rates are of Ethernet frames, as tbf counts: a stream's payload is at most 0.956 of them. Rounds are interleaved,
figures medians, ratios of one run. fleetctl is the whole `fleetctl rollout` with a playbook of the copy alone: it
connects, looks, plans, copies, reads everything again against the manifest, and switches. Prints tables and one JSON
line; ends with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import peers
from hosts import GIB, MODELS, SOURCE, Hosts, hosts

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fleetctl" / "bench"
PARTS = ("one", "fan", "idle", "image")
MB = 1_000_000
ONE_RATE, FAN_RATE = 200, 40  # Mbit/s
ONE_LAYERS, FAN_LAYERS = 120, 5  # 2 GB and 100 MB
LARGE = 30 * 1000 * MB


@dataclass
class Target:
    words: str
    measured: float
    bound: float
    at_least: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


@dataclass
class Report:
    rounds: int
    targets: list[Target] = field(default_factory=list)
    rows: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def measure(self, part: str, contenders: dict[str, Callable[[], float]], rounds: int | None = None) -> None:
        """Every contender once a round, in turn; their seconds are kept under the part's name."""
        rows = self.rows.setdefault(part, {})
        for number in range(rounds or self.rounds):
            for name, once in contenders.items():
                rows.setdefault(name, []).append(once())
                print(f"  round {number + 1}: {name} {rows[name][-1]:.2f} s", file=sys.stderr, flush=True)

    def median(self, part: str, name: str) -> float:
        return statistics.median(self.rows[part][name])

    def line(self, part: str, name: str, *more: str) -> None:
        values = self.rows[part][name]
        columns = f"{statistics.median(values):9.2f} {min(values):8.2f} {max(values):8.2f} {len(values):3}"
        print(f"{name:34} {columns}" + "".join(f" {column:>10}" for column in more), flush=True)

    def head(self, words: str, *more: str) -> None:
        print(f"\n{words}")
        print(f"{'':34} {'median s':>9} {'min':>8} {'max':>8} {'n':>3}" + "".join(f" {column:>10}" for column in more))


def settled(machines: Hosts, which: Sequence[int]) -> None:
    machines.forget(which)
    os.sync()


def one(machines: Hosts, report: Report, venv: Path) -> None:
    """One receiver: the share of plain rsync's speed, and of the link."""
    size = machines.make_model("one", ONE_LAYERS)
    machines.shape("off")
    machines.forget([2])
    _, steps = machines.fleetctl("model", "one", [2])
    manifest = sum(step["seconds"] for step in steps if step["step"] == "manifest")
    machines.shape(f"{ONE_RATE}mbit")

    def peer(copy: Callable[[], float]) -> Callable[[], float]:
        def once() -> float:
            settled(machines, [2])
            seconds = copy()
            machines.prove("one", [2], "/data/peer")
            return seconds

        return once

    def ours() -> float:
        settled(machines, [2])
        done, _ = machines.fleetctl("model", "one", [2])
        machines.prove("one", [2], str(MODELS / "one"))
        return done.seconds

    report.measure("one", {"rsync -a over ssh": peer(lambda: peers.rsync(machines, "one", 2)), "fleetctl": ours})
    slower = {
        "scp -r": peer(lambda: peers.scp(machines, "one", 2)),
        "ansible.builtin.copy": peer(lambda: peers.ansible(machines, "one", 2, venv)),
    }
    report.measure("one", slower, rounds=1)
    report.head(f"one receiver: {size / MB:.0f} MB, source's uplink {ONE_RATE} Mbit/s", "of rsync", "of link")
    base = report.median("one", "rsync -a over ssh")
    for name in report.rows["one"]:
        seconds = report.median("one", name)
        report.line("one", name, f"{base / seconds:.3f}", f"{size * 8 / seconds / ONE_RATE / MB:.3f}")
    print(f"  the manifest, made once at the source before: {manifest:.1f} s")
    seconds = report.median("one", "fleetctl")
    report.targets.append(Target("one receiver, of plain rsync", base / seconds, 0.95, at_least=True))
    share = size * 8 / seconds / ONE_RATE / MB
    report.targets.append(Target("one receiver, of the link", share, 0.9, at_least=True))


def fan(machines: Hosts, report: Report, naive: bool) -> None:
    """K receivers, every uplink limited: the time of K over the time of one."""
    size = machines.make_model("fan", FAN_LAYERS)
    machines.shape("off")
    machines.forget(machines.receivers)
    machines.fleetctl("model", "fan", [2])
    machines.shape(f"{FAN_RATE}mbit")
    sets = {count: machines.receivers[:count] for count in (1, 3, 15) if count <= len(machines.receivers)}

    def ours(which: Sequence[int]) -> Callable[[], float]:
        def once() -> float:
            settled(machines, machines.receivers)
            done, _ = machines.fleetctl("model", "fan", which)
            machines.prove("fan", which, str(MODELS / "fan"))
            return done.seconds

        return once

    def peer(copy: Callable[[Hosts, str, Sequence[int]], float], which: Sequence[int]) -> Callable[[], float]:
        def once() -> float:
            settled(machines, machines.receivers)
            return copy(machines, "fan", which)

        return once

    report.measure("fan", {f"fleetctl, {count}": ours(which) for count, which in sets.items()})
    others: dict[str, Callable[[], float]] = {"rsync, 1": peer(peers.one_by_one, sets[1])}
    for count, which in sets.items():
        if count > 1 and (naive or count == 3):
            others[f"rsync one by one, {count}"] = peer(peers.one_by_one, which)
            others[f"rsync all at once, {count}"] = peer(peers.at_once, which)
    report.measure("fan", others, rounds=1)
    report.head(f"K receivers: {size / MB:.0f} MB, every uplink {FAN_RATE} Mbit/s", "of one")
    for name in [f"fleetctl, {count}" for count in sets]:
        report.line("fan", name, f"{report.median('fan', name) / report.median('fan', 'fleetctl, 1'):.2f}")
    for name in others:
        report.line("fan", name, f"{report.median('fan', name) / report.median('fan', 'rsync, 1'):.2f}")
    for count, bound in ((3, 2.2), (15, 4.6)):
        if count in sets:
            ratio = report.median("fan", f"fleetctl, {count}") / report.median("fan", "fleetctl, 1")
            report.targets.append(Target(f"{count} receivers, times one", ratio, bound))


def idle(machines: Hosts, report: Report) -> None:
    """Nothing to do: a large model of sparse files that lies on the receiver and was verified there once."""
    machines.make_model("small", 1)
    machines.shape("off")
    machines.forget([2])
    for machine in (SOURCE, 2):
        size = machines.stretch("small", "large", LARGE, machine)
    first, _ = machines.fleetctl("model", "large", [2])

    def again() -> float:
        done, steps = machines.fleetctl("model", "large", [2])
        if steps:
            raise RuntimeError(f"there was something to do: {steps}")
        return done.seconds

    report.measure(
        "idle", {"fleetctl": again, "rsync -a": lambda: peers.rsync(machines, "large", 2, str(MODELS / "large"))}
    )
    checksum = {"rsync -a --checksum": lambda: peers.rsync(machines, "large", 2, str(MODELS / "large"), "--checksum")}
    report.measure("idle", checksum, rounds=1)
    report.head(f"nothing to do: {size / MB:.0f} MB on both machines, verified before")
    for name in report.rows["idle"]:
        report.line("idle", name)
    print(f"  what verified it, reading all of it on both machines: {first.seconds:.1f} s")
    report.targets.append(Target("nothing to do", report.median("idle", "fleetctl"), 2, unit=" s"))


def image(machines: Hosts, report: Report) -> None:
    """An image of 1 GB of which the receiver lacks the last layer, 50 MB: time, and bytes on its interface."""
    machines.make_model("small", 1)
    size, layer = machines.make_images()
    machines.shape("off")
    machines.forget([2])
    machines.old_image(2)
    machines.fleetctl("image", "small", [2])
    machines.shape(f"{ONE_RATE}mbit")
    wire: dict[str, list[float]] = {}

    def counted(name: str, copy: Callable[[], float]) -> Callable[[], float]:
        def once() -> float:
            machines.old_image(2)
            os.sync()
            before = machines.received(2)
            seconds = copy()
            wire.setdefault(name, []).append((machines.received(2) - before) / MB)
            if not machines.same_image(2):
                raise RuntimeError(f"{name}: not the source's image")
            return seconds

        return once

    contenders = {
        "fleetctl": counted("fleetctl", lambda: machines.fleetctl("image", "small", [2])[0].seconds),
        "docker save | ssh docker load": counted(
            "docker save | ssh docker load", lambda: peers.save_and_load(machines, 2)
        ),
    }
    report.measure("image", contenders)
    words = f"an image of {size / MB:.0f} MB, {layer / MB:.0f} MB of it changed, uplink {ONE_RATE} Mbit/s"
    report.head(words, "wire MB")
    for name in contenders:
        report.line("image", name, f"{statistics.median(wire[name]):.1f}")
    report.rows["image, wire MB"] = wire
    report.targets.append(Target("one changed layer, on the wire", max(wire["fleetctl"]), 60, unit=" MB"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round, no naive copies to 15")
    parser.add_argument("--only", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    options = parser.parse_args()
    parts = options.only.split(",")
    report = Report(1 if options.quick else options.rounds)
    venv = peers.ansible_venv(CACHE)
    peaks: list[int] = []
    if set(parts) - {"fan"}:
        # Room for the large model, of which not a byte will be on the disk.
        with hosts(CACHE / "distribution", receivers=1, data_size=80 * GIB) as machines:
            for part in parts:
                if part == "one":
                    one(machines, report, venv)
                elif part != "fan":
                    {"idle": idle, "image": image}[part](machines, report)
            peaks += machines.peaks
    if "fan" in parts:
        with hosts(CACHE / "distribution", receivers=15, data_size=2 * GIB) as machines:
            fan(machines, report, naive=not options.quick)
            peaks += machines.peaks
    report.targets.append(Target("fleetctl's own memory", max(peaks) / 1024, 150, unit=" MiB"))
    print("\ntargets")
    for target in report.targets:
        bound = f"at {'least' if target.at_least else 'most'} {target.bound:g}{target.unit}"
        print(f"{target.words:34} {target.measured:9.3f}  {bound:20} {'met' if target.met else 'MISSED'}")
    print(json.dumps({"schema": 1, "rows": report.rows, "targets": [vars(target) for target in report.targets]}))
    return 0 if all(target.met for target in report.targets) else 1


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
