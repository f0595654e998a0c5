"""`make chaos`: rollouts are killed at random, again and again, and whatever was killed converges.

The journal, one JSON line a kill, says what was in progress: the last operation that each target was told of. FLEETCTL_SEED
repeats a run, FLEETCTL_CHAOS_KILLS makes it shorter.
"""

from __future__ import annotations

import difflib
import json
import os
import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetctl.plan.steps import STEPS
from tests.conftest import SEED
from tests.lab.conftest import Lab, a_lab, kill

LISTING = (Path(__file__).parent / "listing.sh").read_text()
KILLS = int(os.environ.get("FLEETCTL_CHAOS_KILLS", "100"))
FULL_KILLS = 5
EACH = 5  # times that each kind of operation is to be hit
AGAIN = 10  # kills of one command before it may end
# Kinds of operation that only some of the rollouts have come to fewer kills: aimed at until each has been hit.
OLD_IMAGES = (
    "d=/var/lib/fleetctl/chaos/images; { printf 'sha256:%064d old\\n' 1 2; grep -v ' old$' $d; } >$d.new; mv $d.new $d"
)
OLD_KEY = "umask 077; echo sk-before-0123456789 >/etc/fleetctl/chaos/api-key.old"


# Which of the rollouts below comes to a kind that few come to.
COMES = {"orphans": 1, "balancer": 2, "image": 3, "model": 3, "join": 3, "start": 3, "tidy": 4, "key": 4, "old-key": 4}


@dataclass
class Watched:
    """A command whose words are read as they come: what each target is in, and what its plan has."""

    process: subprocess.Popen[str]
    doing: dict[str, str] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    planned: Counter[str] = field(default_factory=Counter)
    news: threading.Condition = field(default_factory=threading.Condition)
    over: bool = False

    def read(self) -> None:
        for line in self.process.stderr or ():
            with self.news:
                self.lines.append(line)
                if said := re.match(r"\[(\S+)\] ([a-z-]+): (.*)", line):
                    self.doing[said[1]] = f"{said[2]}: {said[3]}"
                    self.begun.append(said[2])
                elif planned := re.match(r"\s+\S+\s+([a-z-]+)\s+\S", line):
                    self.planned[planned[1]] += 1
                self.news.notify_all()
        with self.news:
            self.over = True
            self.news.notify_all()

    def wait_begun(self, number: int, step: str = "") -> bool:
        """Until so many operations (of the step) have been begun; False when the command ended."""

        def there() -> bool:
            return sum(step in ("", one) for one in self.begun) >= number

        with self.news:
            self.news.wait_for(lambda: there() or self.over, 300)
            return there() and not self.over


@dataclass
class Chaos:
    lab: Lab
    dice: random.Random
    journal: Path
    hits: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)
    kills: int = 0
    ended: Counter[int] = field(default_factory=Counter)
    commands: int = 0

    def run(self, words: str, kills: int) -> None:
        """One command, killed up to `kills` times, then left to itself; it has to end well and leave nothing to do."""
        for _ in range(kills):
            if not self._killed(words):
                break
        done = self.lab.run(*words.split(), "--yes", code=None)
        assert done.code == 0, f"seed {SEED}: fleetctl {words} ended with {done.code}:\n{done.out}{done.err}"
        self.ended[done.code] += 1
        self.commands += 1
        again = self.lab.run(*words.split(), "--yes", code=None)
        assert (again.code, "nothing to do" in again.out) == (0, True), f"seed {SEED}: not converged: {again.out}"

    def rare(self) -> list[str]:
        return [step for step in sorted(self.seen) if self.hits[step] < EACH]

    def _aim(self, planned: Counter[str]) -> str:
        """The kind of operation of this plan that was hit least, while any was hit too seldom; else none in particular."""
        rare = sorted(step for step in planned.keys() & {*STEPS, *self.seen} if self.hits[step] < EACH)
        self.dice.shuffle(rare)
        return min(rare, key=lambda step: self.hits[step], default="")

    def _killed(self, words: str) -> bool:
        """False when the command ended before the moment came."""
        watched = Watched(self.lab.start(*words.split(), "--yes"))
        reader = threading.Thread(target=watched.read, daemon=True)
        reader.start()
        came = watched.wait_begun(1)
        aimed = self._aim(watched.planned)
        most = min(2, watched.planned[aimed]) if aimed else 12
        if not came or not watched.wait_begun(self.dice.randint(1, most), aimed):
            watched.process.communicate(timeout=600)
            reader.join()
            self.seen.update(watched.begun)
            self.ended[watched.process.returncode] += 1
            assert watched.process.returncode == 0, f"seed {SEED}: {words}:\n{''.join(watched.lines)}"
            return False
        if not aimed:  # what is aimed at may last a few hundredths of a second
            time.sleep(self.dice.random() ** 3 * 0.6)
        if watched.process.poll() is None:
            kill(watched.process)
        reader.join()  # what was said before the kill is read to its end
        self.seen.update(watched.begun)
        if watched.process.returncode != -9:  # it came to its end by itself
            assert watched.process.returncode == 0, f"seed {SEED}: {words}:\n{''.join(watched.lines)}"
            return False
        self.kills += 1
        for doing in {what.partition(":")[0] for what in self._in_progress(watched)}:
            self.hits[doing] += 1
        entry = {"kill": self.kills, "seed": SEED, "command": words, "in_progress": self._in_progress(watched)}
        with self.journal.open("a") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        return True

    @staticmethod
    def _in_progress(watched: Watched) -> list[str]:
        """The last thing that was begun: what other targets were last told of may have ended."""
        last = [line for line in watched.lines if re.match(r"\[\S+\] [a-z-]+: ", line)][-1:]
        return [line.split("] ", 1)[1].strip() for line in last]

    def listing(self) -> dict[int, list[str]]:
        machines = [machine["id"] for machine in yaml.safe_load(self.lab.inventory.read_text())["machines"]]
        found = {}
        for machine in machines:
            text = self.lab.on(machine, f"set -- {self.lab.fleet}\n{LISTING}")
            found[machine] = text.splitlines()
        return found

    def unlike(self, never_killed: dict[int, list[str]]) -> str:
        """What is there and should not be (+), and what is not (-); empty when all is as if nobody had been killed."""
        now = self.listing()
        lines = [
            f"{machine}: {line}"
            for machine, wanted in never_killed.items()
            for line in difflib.unified_diff(wanted, now[machine], n=0, lineterm="")
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        return "\n".join(lines)

    def summary(self) -> str:
        rows = [f"  {step:<10} {count:>4}" for step, count in sorted(self.hits.items(), key=lambda one: -one[1])]
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.ended.items()))
        head = f"seed {SEED}: {self.kills} kills, {self.commands} commands converged; exit codes {codes}; hit while in progress:"
        return "\n".join([head, *rows])


def _inventory(lab: Lab, name: str, change: Any) -> str:
    document = yaml.safe_load(lab.inventory.read_text())
    change(document)
    path = lab.inventory.with_name(f"{name}.yaml")
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return str(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines with two instances each."""
    yield from a_lab(tmp_path_factory, "chaos", "10.255.229", [69, 67], instances={"per_machine": 2})


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from a_lab(tmp_path_factory, "chaosfull", "10.255.228")


def converge(lab: Lab) -> None:
    lab.run("rollout", "--yes")
    assert "nothing to do" in lab.run("rollout", "--yes").out


def test_whatever_is_killed_converges(small: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    chaos = Chaos(small, random.Random(SEED), tmp_path_factory.mktemp("journal") / "chaos.jsonl")
    print(f"\nseed {SEED}; journal {chaos.journal}")
    one = _inventory(small, "one", lambda d: d["instances"].update(per_machine=1))
    limits = _inventory(small, "limits", lambda d: d["balancer"].update(body_limit="32m"))
    # A run that nobody kills comes through all of it once.
    converge(small)
    for words in ("rollout --mtp 5", f"rollout -i {one}", f"rollout -i {limits}"):
        small.run(*words.split(), "--yes")
    small.on(67, OLD_IMAGES)
    small.on(69, OLD_KEY)
    small.run("rollout", "--mtp", "3", "--yes")
    small.run("remove-machine", "67", "--purge", "--yes")
    converge(small)
    never_killed = chaos.listing()
    turn = 0
    while chaos.kills < KILLS or chaos.rare():
        # At the end only what comes to the kinds that were not hit often enough.
        case = turn % 6 if chaos.kills < KILLS else next((c for s, c in COMES.items() if s in chaos.rare()), turn % 6)
        turn += 1
        if case in (1, 2):
            converge(small)  # or it was this already
        if case == 0:
            words = "rollout --mtp 5"
        elif case == 1:
            words = f"rollout -i {one}"
        elif case == 2:
            words = f"rollout -i {limits}"
        elif case == 3:
            small.run("remove-machine", "67", "--purge", "--yes")
            words = "rollout"
        elif case == 4:
            small.on(67, OLD_IMAGES)
            small.on(69, OLD_KEY)
            words = "rollout --mtp 3"
        else:
            words = "rollout"
        chaos.run(words, AGAIN)
        print(f"  turn {turn}: {words}: {chaos.kills} kills", flush=True)
        if words == "rollout":
            assert chaos.unlike(never_killed) == "", f"seed {SEED}, turn {turn}"
        assert turn < 3 * KILLS, f"never hit often enough:\n{chaos.summary()}"
    converge(small)
    print(chaos.summary())
    assert chaos.unlike(never_killed) == ""
    assert small.status()["verdict"] == "ok"


def test_the_full_fleet_converges_too(full: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    chaos = Chaos(full, random.Random(SEED), tmp_path_factory.mktemp("journal") / "full.jsonl")
    converge(full)
    full.run("rollout", "--mtp", "5", "--yes")
    converge(full)
    never_killed = chaos.listing()
    turn = 0
    while chaos.kills < FULL_KILLS:
        chaos.run("rollout --mtp 5" if turn % 2 == 0 else "rollout", 3)
        turn += 1
    converge(full)
    print("\n" + chaos.summary())
    assert chaos.unlike(never_killed) == ""
    assert len([one for one in full.states().values() if one == "serving"]) == 16
