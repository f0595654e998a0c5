"""What may break while a fleet that serves is changed: it serves on, status tells the truth, the same command finishes it."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.lab.conftest import Lab, a_lab

pytestmark = pytest.mark.matrix

SESSIONS = "$(ps -eo pid,args | awk '/[s]shd: root|[s]shd-session: root/ { print $1 }')"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines with two instances each that serve."""
    changes = {"instances": {"per_machine": 2}, "rollout": {"drain_timeout": 30, "start_timeout": 45}}
    for lab in a_lab(tmp_path_factory, "faults", "10.255.224", [69, 67], **changes):
        lab.run("rollout", "--yes")
        yield lab


def another(lab: Lab) -> str:
    """3 or 5 speculative tokens, whichever nobody runs with now."""
    running = {one["mtp"] for machine in lab.status()["machines"] for one in machine["instances"]}
    return "3" if 3 not in running else "5"


class Rollout:
    """A rollout on its way, whose words can be waited for."""

    def __init__(self, lab: Lab, *more: str) -> None:
        self.words = ("rollout", "--mtp", another(lab), *more, "--yes")
        self.lab, self.said = lab, ""
        self.process: subprocess.Popen[str] = lab.start(*self.words)
        self.news = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            with self.news:
                self.said += line
                self.news.notify_all()
        with self.news:
            self.said += "\n[end]"
            self.news.notify_all()

    def until(self, words: str) -> None:
        with self.news:
            self.news.wait_for(lambda: words in self.said or self.said.endswith("[end]"), 120)
        assert words in self.said, self.said

    def ended(self, *codes: int) -> str:
        out = self.process.stdout.read() if self.process.stdout else ""
        code = self.process.wait(300)
        self.reader.join(10)
        assert code in codes, f"ended with {code}:\n{out}{self.said}"
        return out + self.said

    def finished_by_the_same_command(self) -> None:
        self.lab.run(*self.words)
        assert "nothing to do" in self.lab.run(*self.words).out
        document = self.lab.status()
        tokens = {one["mtp"] for machine in document["machines"] for one in machine["instances"]}
        assert (document["verdict"], document["balancer"]["up"], tokens) == ("ok", 4, {int(self.words[2])})


def half_done(lab: Lab) -> None:
    """Users are served, and status says what is open and the command that finishes it."""
    assert lab.ask("somebody")[0] == 200
    status = lab.run("status", code=None)
    assert "half rolled out" in status.out or status.code != 0, status.out


STEPS = ["release", "units", "roll", "gate", "canary", "record"]


@pytest.mark.parametrize("how", ["cut", "frozen"])
@pytest.mark.parametrize("step", STEPS)
def test_the_connection_is_lost_in_a_step(served: Lab, dice: random.Random, step: str, how: str) -> None:
    rollout = Rollout(served)
    rollout.until(f"] {step}: ")
    time.sleep(dice.random() * 0.3)  # somewhere within it
    for machine in (69, 67):
        served.on(machine, f"kill -{'KILL' if how == 'cut' else 'STOP'} {SESSIONS}", check=False)
    said = rollout.ended(0, 1, 4)
    if how == "frozen":
        for machine in (69, 67):
            served.on(machine, f"kill -KILL {SESSIONS}", check=False)
    assert served.ask("somebody")[0] == 200
    assert "Traceback" not in said
    rollout.finished_by_the_same_command()


def docker_down(lab: Lab) -> None:
    """Masked: whoever starts an instance would start the engine with it."""
    lab.on(67, "systemctl mask --runtime --quiet docker.socket docker.service")
    lab.on(67, "systemctl stop docker.socket docker.service")


def docker_up(lab: Lab) -> None:
    lab.on(67, "systemctl unmask --runtime --quiet docker.socket docker.service")
    lab.on(67, "systemctl start docker.socket docker.service")


def test_the_docker_engine_is_down_before_it(served: Lab) -> None:
    docker_down(served)
    try:
        refused = served.run("rollout", "--mtp", "4", "--yes", code=1)
        assert "the Docker engine does not answer" in refused.err
        # What the engines had in hand when they were ended is lost; whoever comes later is served by the others.
        served.wait("others serve", lambda: served.ask("somebody")[0] == 200, 20)
    finally:
        docker_up(served)
    served.wait_serving()
    rollout = Rollout(served)
    rollout.ended(0)
    rollout.finished_by_the_same_command()


def test_the_docker_engine_goes_down_in_the_middle(served: Lab) -> None:
    rollout = Rollout(served)
    rollout.until("[67/0] gate: ")
    docker_down(served)
    rollout.ended(1, 4)
    half_done(served)
    docker_up(served)
    rollout.finished_by_the_same_command()


@pytest.mark.parametrize("moment", ["before its turn", "during its turn", "after its turn"])
def test_a_machine_loses_power(served: Lab, moment: str) -> None:
    """67 comes last, or first where its own instance is the canary."""
    rollout = Rollout(served, *(["--canary", "67/0"] if moment == "after its turn" else []))
    rollout.until({"before its turn": "[69/0] gate: ", "during its turn": "[67/0] gate: "}.get(moment, "[69/0] gate: "))
    served.run("lab", "fault", "poweroff", "67")
    rollout.ended(0, 1, 4)
    assert served.ask("somebody")[0] == 200
    assert "unreachable" in served.run("status", code=4).out
    served.run("lab", "fault", "poweron", "67")
    served.wait("67 is back", lambda: served.run("status", code=None).code != 4)
    rollout.finished_by_the_same_command()


def test_the_balancers_machine_is_rebooted_in_the_middle(served: Lab) -> None:
    rollout = Rollout(served)
    rollout.until("[67/0] gate: ")
    served.run("lab", "fault", "reboot", "69")
    rollout.ended(0, 1, 4)
    served.wait("the balancer is back", lambda: served.ask("somebody")[0] == 200)
    rollout.finished_by_the_same_command()


def ro_units(lab: Lab) -> Callable[[], object]:
    folder = "/etc/systemd/system"
    lab.on(67, f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}")
    return lambda: lab.on(67, f"umount {folder}")


def full_state(lab: Lab) -> Callable[[], object]:
    lab.on(67, "mount -t tmpfs -o size=20m full /var/lib/fleetctl/faults/releases && "
               "dd if=/dev/zero of=/var/lib/fleetctl/faults/releases/full bs=1M 2>/dev/null || true")  # fmt: skip
    return lambda: lab.on(67, "umount /var/lib/fleetctl/faults/releases")


@pytest.mark.parametrize("broken", [ro_units, full_state])
def test_what_cannot_be_written_stops_it_with_its_name(
    served: Lab, broken: Callable[[Lab], Callable[[], object]]
) -> None:
    mend = broken(served)
    try:
        rollout = Rollout(served)
        said = rollout.ended(1)
        assert "Read-only file system" in said or "No space left" in said
        assert served.ask("somebody")[0] == 200
        assert served.run("plan", *rollout.words[:-1], code=None).out.count("nothing to do") == 0
    finally:
        mend()
    rollout.finished_by_the_same_command()


def test_an_engine_that_answers_garbage_is_found_by_the_canary_and_nobody_else_is_touched(served: Lab) -> None:
    served.run("lab", "fault", "engine", "69/0", "garbled")
    rollout = Rollout(served)
    said = rollout.ended(1)
    assert "garbled" in said
    assert "[67/0] roll: " not in said
    half_done(served)
    served.run("lab", "fault", "engine", "69/0", "clear")
    rollout.finished_by_the_same_command()


@pytest.mark.parametrize("word", ["hang", "unhealthy", "mtp0"])
def test_an_engine_that_does_not_get_well_stops_it(served: Lab, word: str) -> None:
    served.run("lab", "fault", "engine", "69/0", word)
    rollout = Rollout(served)
    rollout.ended(1)
    half_done(served)
    served.run("lab", "fault", "engine", "69/0", "clear")
    rollout.finished_by_the_same_command()


def test_an_engine_that_dies_as_it_starts_comes_back_by_itself(served: Lab) -> None:
    rollout = Rollout(served)
    rollout.until("[67/0] gate: ")
    served.wait(
        "it runs", lambda: "true" in served.on(67, "docker inspect -f '{{.State.Running}}' qwen38-tp2-0 || true")
    )
    served.run("lab", "fault", "engine", "67/0", "exit0")
    rollout.ended(0, 1)
    rollout.finished_by_the_same_command()


def test_memory_that_is_released_late_is_waited_for(served: Lab) -> None:
    served.run("lab", "fault", "engine", "67/0", "late-release")
    rollout = Rollout(served)
    rollout.ended(0)
    served.run("lab", "fault", "engine", "67/0", "clear")
    rollout.finished_by_the_same_command()


def test_a_machine_whose_clock_is_an_hour_off_is_changed_like_any_other(served: Lab) -> None:
    """What its commands see; the clock itself is never set."""
    served.on(
        67,
        "mv /usr/bin/date /usr/bin/date.real && printf '%s\\n' '#!/bin/sh' "
        '\'exec /usr/bin/date.real -d "1 hour" "$@"\' >/usr/bin/date && chmod 755 /usr/bin/date',
    )
    try:
        rollout = Rollout(served)
        rollout.ended(0)
        rollout.finished_by_the_same_command()
    finally:
        served.on(67, "mv -f /usr/bin/date.real /usr/bin/date")


def test_a_terminal_that_is_closed_ends_it_and_the_lock_is_free(served: Lab) -> None:
    rollout = Rollout(served)
    rollout.until("[69/0] gate: ")
    rollout.process.send_signal(1)
    rollout.ended(130)
    half_done(served)
    rollout.finished_by_the_same_command()
