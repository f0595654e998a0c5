"""Labs for tests: real machines in containers, driven through the command line as a person would.

Their fleets have names and addresses of their own, so that a demo may stand beside them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FLEETCTL = [sys.executable, "-m", "fleetctl"]
SHIPPED = ROOT / "inventory.yaml"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Lab:
    """One lab that is up, and its command line."""

    fleet: str
    folder: Path
    environment: dict[str, str]
    outputs: list[str] = field(default_factory=list)

    @property
    def inventory(self) -> Path:
        return Path(self.environment["FLEETCTL_INVENTORY"])

    @property
    def key(self) -> str:
        return self.environment["FLEET_API_KEY"]

    @property
    def url(self) -> str:
        return self.environment["FLEET_URL"]

    def command(self, *words: str, inventory: Path | None = None) -> list[str]:
        which = ["-i", str(inventory)] if inventory else []
        return [*FLEETCTL, *words, *which]

    def start(self, *words: str, inventory: Path | None = None) -> subprocess.Popen[str]:
        """A command that runs on; its stderr can be read line by line."""
        return subprocess.Popen(
            self.command(*words, inventory=inventory),
            env={**os.environ, **self.environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        *words: str,
        code: int | None = 0,
        inventory: Path | None = None,
        seconds: float = 600,
        **environment: str,
    ) -> Done:
        """A command to its end; fails the test when it ends otherwise than with `code` (None: whatever)."""
        process = subprocess.run(
            self.command(*words, inventory=inventory),
            env={**os.environ, **self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        self.outputs += [process.stdout, process.stderr]
        if code is not None and process.returncode != code:
            pytest.fail(
                f"fleetctl {shlex.join(words)} ended with {process.returncode}:\n{process.stdout}\n{process.stderr}"
            )
        return Done(process.returncode, process.stdout, process.stderr)

    def container(self, machine: int) -> str:
        return f"fleetctl-lab-{self.fleet}-{machine}"

    def on(self, machine: int, script: str, *, check: bool = True) -> str:
        """A shell line on a machine, past SSH: the hand of God."""
        done = subprocess.run(
            ["docker", "exec", self.container(machine), "sh", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(f"on {machine}: {script}\n{done.stdout}{done.stderr}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        """`status -o json`, whatever the exit code."""
        document: dict[str, Any] = self.run("status", "-o", "json", code=None).json
        return document

    def states(self) -> dict[str, str]:
        return {one["id"]: one["state"] for machine in self.status()["machines"] for one in machine["instances"]}

    def ask(
        self, session: str, path: str = "/v1/models", *, key: str | None = None, data: str | None = None
    ) -> tuple[int, str]:
        """Through the balancer: status and X-Upstream-Addr."""
        command = ["curl", "-s", "-o", "/dev/null", "-D", "-", "-m", "30", f"{self.url}{path}"]
        command += ["-H", f"X-Session-ID: {session}", "-K", "-"]
        if data is not None:
            command += ["-H", "Content-Type: application/json", "-d", data]
        secret = f'header = "Authorization: Bearer {self.key if key is None else key}"\n'
        answer = subprocess.run(command, input=secret, capture_output=True, text=True, check=False).stdout
        code = re.search(r"^HTTP/[0-9.]+ (\d+)", answer)
        address = re.search(r"^x-upstream-addr: (\S+)", answer, flags=re.I | re.M)
        return int(code.group(1)) if code else 0, address.group(1) if address else ""

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = 180) -> None:
        """Until a condition holds; a test never sleeps for luck."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds:.0f} s: {what}\n{self.run('status', code=None).out}")
            time.sleep(0.3)

    def wait_serving(self, *instances: str, seconds: float = 180) -> None:
        def all_serve() -> bool:
            states = self.states()
            return all(states[one] == "serving" for one in instances or states)

        self.wait(f"{instances or 'all'} serving", all_serve, seconds)


def write_inventory(folder: Path, fleet: str, net: str, machines: list[int] | None = None, **changes: Any) -> Path:
    """The shipped inventory as another fleet with other addresses and ports."""
    number = int(net.rsplit(".", 1)[1])
    listen = 3000 + number * 2
    text = (
        SHIPPED.read_text()
        .replace("10.255.254.", f"{net}.")
        .replace("2219", str(listen))
        .replace("2220", str(listen + 1))
    )
    document = yaml.safe_load(text)
    document["fleet"] = fleet
    document["rollout"] = {**document["rollout"], "drain_timeout": 30, "start_timeout": 120}
    if machines is not None:
        document["machines"] = [machine for machine in document["machines"] if machine["id"] in machines]
    for key, value in changes.items():
        document[key] = {**document[key], **value}
    path = folder / "inventory.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return path


def bring_up(folder: Path, inventory: Path, fleet: str, *words: str, seconds: float = 600) -> Lab:
    up = [*FLEETCTL, "lab", "up", "--fresh", *words, "-i", str(inventory)]
    subprocess.run(up, check=True, timeout=seconds, stdin=subprocess.DEVNULL)
    lines = subprocess.run(
        [*FLEETCTL, "lab", "env", "-i", str(inventory)], check=True, capture_output=True, text=True
    ).stdout
    environment = dict(part.split("=", 1) for part in shlex.split(lines) if "=" in part)
    return Lab(fleet, folder, environment)


def take_down(inventory: Path) -> None:
    subprocess.run([*FLEETCTL, "lab", "down", "-i", str(inventory)], check=True, timeout=300, stdin=subprocess.DEVNULL)


def a_lab(
    tmp_path_factory: pytest.TempPathFactory, fleet: str, net: str, machines: list[int] | None = None, **changes: Any
) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp(fleet)
    inventory = write_inventory(folder, fleet, net, machines, **changes)
    try:
        yield bring_up(folder, inventory, fleet)
    finally:
        if not os.environ.get("FLEETCTL_KEEP_LAB"):
            take_down(inventory)


@pytest.fixture(scope="module")
def report_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Four machines in the state that the first report found; root over SSH, privileged containers."""
    yield from a_lab(tmp_path_factory, "history", "10.255.240")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines, 69 and 67, for what needs no more."""
    yield from a_lab(tmp_path_factory, "pair", "10.255.241", [69, 67])


@pytest.fixture(scope="module")
def mapped_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Four machines reached as the sudo user through a jump host; device-mapped containers."""
    for lab in a_lab(tmp_path_factory, "mapped", "10.255.242", None, accelerator={"device_mode": "mapped"}):
        through_a_jump_host(lab)
        yield lab


def through_a_jump_host(lab: Lab) -> None:
    """Machine 69 is the jump host of the others and 68 that of 69; everybody logs in as ops."""
    document = yaml.safe_load(lab.inventory.read_text())
    ssh = {machine["id"]: machine["ssh"] for machine in document["machines"]}
    for machine in document["machines"]:
        own, hop = machine["ssh"], ssh[68 if machine["id"] == 69 else 69]
        jump = {"host": hop["host"], "port": hop["port"], "user": "ops", "key": own["key"]}
        machine["ssh"] = {"host": machine["address"], "port": 22, "user": "ops", "key": own["key"], "jump": jump}
    lab.inventory.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    for machine in document["machines"]:
        # Known from now on by its cluster address too: a person would compare the fingerprint.
        shown = lab.on(machine["id"], "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
        lab.run("trust", str(machine["id"]), "--fingerprint", shown)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, by id, with everything it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
