"""Breaking a lab on purpose: what happens to real machines, done to one of them at a time."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import FleetctlError, UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.lab import docker, machines
from fleetctl.lab.engines import Engine
from fleetctl.lab.layout import Layout, Record

SHUTDOWN_SECONDS = 60
FAULTS_FOLDER = "/usr/local/Ascend/driver/lab-faults"
NPU_FOLDER = "/etc/npu-smi-lab"
FILLER = ".fleetctl-lab-full"
DISKS = {"data": "/data", "docker": "/var/lib/docker"}
# An exit ends the process that reads it and must not end the next one: it goes into the container, which is replaced.
ONCE = frozenset(("exit0", "exit1"))
ENGINE_WORDS = frozenset(("hang", "slow-start", "garbled", "mtp0", "late-release", "unhealthy", "wrong-answers", *ONCE))

USAGE = """\
reboot ID | poweroff ID | poweron ID      orderly restart; power lost; power back
freeze ID | freeze-ssh ID | thaw ID       the whole machine, or its sshd with all sessions, stops answering
cut ID | heal ID                          its network cable
slow ID RATE|off                          what it sends, such as 200mbit
disk-full ID [data|docker] | disk-free ID
engine ID/INDEX WORD... | clear           WORD: hang exit0 exit1 slow-start garbled mtp0 late-release unhealthy
npu ID health N WORD | absent N | hbm N MB | hang | clear"""


@dataclass(frozen=True)
class _Victim:
    """The machine a fault is done to, and the words that follow it."""

    fleet: Fleet
    machine: int
    container: str
    ssh_port: int
    rest: tuple[str, ...]

    def inside(self, script: str) -> str:
        return docker.inside(self.container, script, step=f"lab fault on machine {self.machine}")

    def docker(self, *arguments: str) -> str:
        return docker.docker(*arguments, self.container, step=f"lab fault on machine {self.machine}")


def fault(fleet: Fleet, *, state_dir: Path, words: Sequence[str]) -> str:
    """Does what the words say (see USAGE) and returns what was done, for people.

    Raises UsageError for words that mean nothing, FleetctlError when the lab did not follow.
    """
    if list(words) == ["help"]:
        return USAGE
    if len(words) < 2 or words[0] not in _KINDS:
        raise UsageError(f"lab fault takes one of:\n{USAGE}")
    layout = Layout(fleet.name, state_dir.absolute())
    record = Record.read(layout.record)
    if record is None:
        raise UsageError(f"lab {fleet.name} is not up", next_command="fleetctl lab up")
    kind, target, rest = words[0], words[1], tuple(words[2:])
    if kind == "engine":
        from fleetctl.fleet.targets import resolve

        chosen = resolve(fleet, [target]).instances
        if not chosen:
            raise UsageError(f"{target} is no instance")
        if record.engine is not Engine.SIMULATED:
            raise UsageError(
                f"the engine {record.engine.value} has no faults on demand: kill its processes, or the machine"
            )
        return "\n".join(_engine(fleet, layout, instance, rest) for instance in chosen)
    machine = _machine(fleet, target)
    container = layout.container(machine)
    return _KINDS[kind](_Victim(fleet, machine, container, record.ssh_ports.get(machine, 0), rest))


def _machine(fleet: Fleet, word: str) -> int:
    if word.isdigit() and int(word) in fleet.machines:
        return int(word)
    raise UsageError(f"{word} is no machine of {fleet.name}; there are {', '.join(map(str, fleet.machines))}")


def _reboot(victim: _Victim) -> str:
    victim.docker("restart", "--time", str(SHUTDOWN_SECONDS))
    machines.wait_ssh(victim.ssh_port, victim.machine, machines.BOOT_SECONDS)
    return f"machine {victim.machine} was rebooted"


def _poweroff(victim: _Victim) -> str:
    docker.run(["docker", "unpause", victim.container], check=False)
    victim.docker("kill")
    return f"machine {victim.machine} lost power"


def _poweron(victim: _Victim) -> str:
    victim.docker("start")
    machines.wait_ssh(victim.ssh_port, victim.machine, machines.BOOT_SECONDS)
    return f"machine {victim.machine} has power again"


def _freeze(victim: _Victim) -> str:
    victim.docker("pause")
    return f"machine {victim.machine} is frozen"


def _freeze_ssh(victim: _Victim) -> str:
    victim.inside("pgrep -x sshd | xargs kill -STOP || true")  # one that has just ended is no failure
    return f"sshd of machine {victim.machine} is frozen, with its sessions"


def _thaw(victim: _Victim) -> str:
    docker.run(["docker", "unpause", victim.container], check=False)
    victim.inside("pgrep -x sshd | xargs kill -CONT || true")
    return f"machine {victim.machine} goes on"


def _cut(victim: _Victim) -> str:
    _cable(victim, "down")
    return f"machine {victim.machine} is cut off"


def _heal(victim: _Victim) -> str:
    _cable(victim, "up")
    return f"machine {victim.machine} is connected again"


def _cable(victim: _Victim, state: str) -> None:
    """The end of the cable on this box's side: the machine loses the carrier and keeps addresses and routes."""
    index = victim.inside("cat /sys/class/net/eth0/iflink")
    for interface in Path("/sys/class/net").iterdir():
        if (interface / "ifindex").read_text(encoding="ascii").strip() == index:
            docker.run(["ip", "link", "set", interface.name, state], step="lab fault")
            return
    raise FleetctlError("its network cable is not found on this box", machine=victim.machine, step="lab fault")


def _slow(victim: _Victim) -> str:
    if len(victim.rest) != 1 or not re.fullmatch(r"off|[1-9][0-9]*[kmg]?bit", victim.rest[0]):
        raise UsageError("lab fault slow ID RATE: a rate such as 200mbit, or off")
    rate = victim.rest[0]
    if rate == "off":
        victim.inside("tc qdisc del dev eth0 root 2>/dev/null || true")
        return f"machine {victim.machine} sends at full speed"
    victim.inside(f"tc qdisc replace dev eth0 root tbf rate {rate} burst 256kb latency 50ms")
    return f"machine {victim.machine} sends at {rate} until it is rebooted"


def _disk_full(victim: _Victim) -> str:
    which = victim.rest[0] if victim.rest else "data"
    if which not in DISKS:
        raise UsageError(f"lab fault disk-full ID [{'|'.join(DISKS)}]")
    victim.inside(f"""
cd {DISKS[which]}
free=$(df --output=avail --block-size=1 . | tail -n 1)
[ "$free" -eq 0 ] || fallocate -l "$free" {FILLER} || true
cat /dev/zero >>{FILLER}.rest 2>/dev/null || true""")
    return f"{DISKS[which]} of machine {victim.machine} is full"


def _disk_free(victim: _Victim) -> str:
    victim.inside("".join(f"rm -f {path}/{FILLER} {path}/{FILLER}.rest\n" for path in DISKS.values()))
    return f"the disks of machine {victim.machine} have room again"


def _npu(victim: _Victim) -> str:
    """Files of the simulated npu-smi: `health-N`, `absent-N`, `hbm-N`, `hang`."""
    match victim.rest:
        case ("clear",):
            victim.inside(f"rm -rf {NPU_FOLDER}")
            return f"npu-smi of machine {victim.machine} tells the truth again"
        case ("hang",):
            name, content = "hang", ""
        case ("absent", index) if index.isdigit():
            name, content = f"absent-{index}", ""
        case (("health" | "hbm") as kind, index, content) if index.isdigit():
            name = f"{kind}-{index}"
        case _:
            raise UsageError("lab fault npu ID health N WORD | absent N | hbm N MB | hang | clear")
    victim.inside(f"mkdir -p {NPU_FOLDER}; printf '%s\\n' {shlex.quote(content)} >{NPU_FOLDER}/{name}")
    return f"npu-smi of machine {victim.machine}: {' '.join(victim.rest)}"


def _engine(fleet: Fleet, layout: Layout, instance: Instance, words: tuple[str, ...]) -> str:
    """Words for one engine: in the host file that it reads every second, or in its container when they end it."""
    unknown = [word for word in words if word not in ENGINE_WORDS and word != "clear"]
    if unknown or not words:
        raise UsageError(f"lab fault engine {instance.id} WORD...: {', '.join(sorted(ENGINE_WORDS))} or clear")
    victim = _Victim(fleet, instance.machine, layout.container(instance.machine), 0, words)
    name, file = shlex.quote(instance.name), f"{FAULTS_FOLDER}/{instance.port}"
    once = [word for word in words if word in ONCE]
    lasting = [word for word in words if word in ENGINE_WORDS - ONCE]
    if "clear" in words:
        victim.inside(f"rm -f {file}; docker exec {name} rm -f /run/fault 2>/dev/null || true")
    if lasting:
        victim.inside(f"mkdir -p {FAULTS_FOLDER}; echo {' '.join(lasting)} >{file}")
    if once:
        victim.inside(f"docker exec {name} sh -c 'echo {' '.join(once)} >/run/fault'")
    return f"engine {instance.id}: {' '.join(words)}"


_KINDS: dict[str, Callable[[_Victim], str]] = {
    "reboot": _reboot,
    "poweroff": _poweroff,
    "poweron": _poweron,
    "freeze": _freeze,
    "freeze-ssh": _freeze_ssh,
    "thaw": _thaw,
    "cut": _cut,
    "heal": _heal,
    "slow": _slow,
    "disk-full": _disk_full,
    "disk-free": _disk_free,
    "npu": _npu,
    "engine": _thaw,  # resolved to instances before this table is asked
}
