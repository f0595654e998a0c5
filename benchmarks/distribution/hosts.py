"""The machines of the benchmark: a lab with a source and its receivers, uplinks shaped inside their own namespaces."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.load import load
from fleetctl.lab import Options, down, fault, up
from fleetctl.lab import docker as engine
from fleetctl.lab import model as lab_model
from fleetctl.lab.layout import Layout

ROOT = Path(__file__).parents[2]
FLEETCTL = [sys.executable, str(Path(__file__).parent / "copies.py")]
NAME = "dist"
NETWORK = "10.255.200"
SOURCE = 1
MODELS = PurePosixPath("/data/models")
REFERENCE = "fleetctl-bench/engine:now"
GIB = 1 << 30


@dataclass(frozen=True)
class Run:
    """One process to its end: seconds, the largest it became (KiB), its standard output."""

    seconds: float
    peak: int
    output: str


RUNNING: set[subprocess.Popen[str]] = set()


def run(command: Sequence[str], *, cwd: Path | None = None, **environment: str) -> Run:
    """Runs a command to its end, in a session of its own. Raises RuntimeError when it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started, peak = time.monotonic(), 0
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )
        RUNNING.add(process)
        try:
            # What the kernel says of a child that ended counts this process's own memory, from before the exec.
            while process.poll() is None:
                peak = max(peak, _high_water(process.pid))
                time.sleep(0.05)
        finally:
            end(process)
        seconds = time.monotonic() - started
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            said = f"{out.read()[-2000:]}{err.read()[-2000:]}"
            raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}:\n{said}")
        return Run(seconds, peak, out.read())


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    RUNNING.discard(process)


def _say(words: str) -> None:
    print(f"  {words}", file=sys.stderr, flush=True)


def _high_water(pid: int) -> int:
    """The most memory a process ever had, KiB; 0 when it is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


class Hosts:
    """Machine 1 is the source, 2 and up are receivers. Everything of it lies below `folder`."""

    def __init__(self, folder: Path, receivers: int, data_size: int) -> None:
        self.folder = folder
        self.machines = range(1, receivers + 2)
        self.receivers = tuple(self.machines[1:])
        self.layout = Layout(NAME, folder / "lab")
        self.data_size = data_size
        self.peaks: list[int] = []

    def up(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = Options(bare=True, fresh=True, data_size=self.data_size, docker_size=6 * GIB)
        up(self._fleet(), state_dir=self.layout.folder, progress=_say, options=options)
        every = engine.inspect("container", [self.layout.container(machine) for machine in self.machines])
        pids = {item["Name"].lstrip("/"): int(item["State"]["Pid"]) for item in every}
        self.pids = {machine: pids[self.layout.container(machine)] for machine in self.machines}
        key, known = self.layout.key.read_bytes(), self.layout.known_hosts.read_bytes()
        for machine in self.machines:
            self.inside(machine, "umask 077; mkdir -p /root/.ssh; cat >/root/.ssh/bench", stdin=key)
            self.inside(machine, "cat >/root/.ssh/known_hosts", stdin=known)
        self.inside(SOURCE, f"rm -rf {MODELS}/*")

    def down(self) -> None:
        down(self._fleet(), state_dir=self.layout.folder, progress=_say)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _fleet(self) -> Fleet:
        path = self.folder / "inventory.yaml"
        document = yaml.safe_load((ROOT / "inventory.yaml").read_text())
        document |= {"fleet": NAME, "source": SOURCE}
        document["machines"] = [{"id": machine, "address": self.address(machine)} for machine in self.machines]
        document["balancer"]["machine"] = SOURCE
        document["image"] = {"reference": REFERENCE}
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return load(path)

    @staticmethod
    def address(machine: int) -> str:
        return f"{NETWORK}.{machine + 10}"

    def inside(self, machine: int, script: str, *, stdin: bytes = b"", seconds: float = 900) -> str:
        return engine.inside(self.layout.container(machine), script, stdin=stdin, seconds=seconds)

    def command(self, machine: int, script: str) -> list[str]:
        """A command line of this box that runs a script on a machine."""
        return ["docker", "exec", self.layout.container(machine), "/bin/sh", "-euc", script]

    def disk(self, machine: int) -> Path:
        """A machine's /data as this box sees it."""
        return self.layout.machine(machine) / "data"

    def shape(self, rate: str) -> None:
        """What every machine may send, such as 200mbit or off."""
        for machine in self.machines:
            fault(self._fleet(), state_dir=self.layout.folder, words=["slow", str(machine), rate])

    def received(self, machine: int) -> int:
        """Bytes that came in over the machine's interface, all layers counted."""
        for line in Path(f"/proc/{self.pids[machine]}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == "eth0":
                return int(counters.split()[0])
        raise RuntimeError(f"machine {machine} has no eth0")

    # --- fleetctl

    def fleetctl(self, what: str, model: str, receivers: Sequence[int]) -> tuple[Run, list[dict[str, Any]]]:
        """`fleetctl rollout` of a model or an image alone: the run, and its steps with their seconds."""
        folder = self.folder / "rows" / model
        if not folder.exists():
            self._write_row(folder, model)
        machines = ",".join(map(str, receivers))
        words = ["rollout", "--yes", "--quiet", "-o", "json", "--machines", machines]
        done = run(
            [*FLEETCTL, what, *words, "-i", str(folder / "inventory.yaml")],
            FLEET_API_KEY=self.layout.api_key.read_text().strip(),
        )
        self.peaks.append(done.peak)
        steps: list[dict[str, Any]] = json.loads(done.output)["results"]
        longest = ", ".join(f"{step['target']} {step['step']} {step['seconds']:.1f}" for step in steps)
        _say(f"fleetctl, {len(receivers)}: {done.seconds:.2f} s: {longest}")
        return done, steps

    def _write_row(self, folder: Path, model: str) -> None:
        document = yaml.safe_load(self.layout.inventory.read_text())
        document["model"] = {"name": model, "path": str(MODELS / model)}
        (folder / ".fleetctl").mkdir(parents=True)
        (folder / "inventory.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        shutil.copy(self.layout.known_hosts, folder / ".fleetctl" / f"{NAME}.known_hosts")

    def forget(self, machines: Sequence[int]) -> None:
        """Receivers that never had a copy of anything."""
        script = (
            "systemctl stop 'fleetctl-*' 2>/dev/null || true; systemctl reset-failed; "
            "find /data -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {} +; "
            f"rm -rf /var/lib/fleetctl /root/.ansible; mkdir -p {MODELS} /data/peer; sync -f /data"
        )
        for machine in machines:
            self.inside(machine, script)

    def prove(self, model: str, machines: Sequence[int], where: str) -> None:
        """Raises RuntimeError unless the folder `where` of each machine has exactly the source's bytes."""
        script = "cd {} && find -L . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
        wanted = self.inside(SOURCE, script.format(MODELS / model))
        for machine in machines:
            if self.inside(machine, script.format(where)) != wanted:
                raise RuntimeError(f"machine {machine}: {where} differs from the source's {model}")

    # --- what is copied

    def make_model(self, name: str, layers: int) -> int:
        """A model on the source, 16 MiB a layer; returns its bytes."""
        folder = self.disk(SOURCE) / "models" / name
        if not folder.exists():
            lab_model.make(folder, name, layers)
        return sum(path.stat().st_size for path in folder.iterdir())

    def stretch(self, like: str, name: str, size: int, machine: int) -> int:
        """The source's model with tensors so long that all have `size` bytes, of which none are on the disk."""
        models = self.disk(SOURCE) / "models"
        folder = self.disk(machine) / "models" / name
        folder.mkdir()
        shards = sorted((models / like).glob("*.safetensors"))
        factor = size // sum(path.stat().st_size for path in shards)
        for path in (models / like).iterdir():
            if path not in shards:
                shutil.copy(path, folder)
        for path in shards:
            with path.open("rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            length = 0
            for tensor, entry in header.items():
                if tensor != "__metadata__":
                    entry["shape"][0] *= factor
                    entry["data_offsets"] = [offset * factor for offset in entry["data_offsets"]]
                    length = max(length, entry["data_offsets"][1])
            text = json.dumps(header).encode()
            with (folder / path.name).open("wb") as file:
                file.write(struct.pack("<Q", len(text)) + text)
                file.truncate(8 + len(text) + length)
        return sum(path.stat().st_size for path in folder.iterdir())

    def make_images(self) -> tuple[int, int]:
        """An image of 1 GB on the source, another with its last layer changed there under the same name, and the first
        on machine 2. Returns the bytes of the image and of that layer."""
        layer = 50_000_000
        script = f"""
        mkdir -p /data/image && cd /data/image
        for part in a b c d; do head -c 215000000 /dev/urandom >$part; done
        printf 'FROM %s\\nCOPY a /bench/\\nCOPY b /bench/\\nCOPY c /bench/\\nCOPY d /bench/\\nCOPY top /bench/\\n' \\
            {REFERENCE} >Dockerfile
        docker tag {REFERENCE} bench:base; sed -i 's|^FROM.*|FROM bench:base|' Dockerfile
        for version in old new; do
            head -c {layer} /dev/urandom >top
            DOCKER_BUILDKIT=0 docker build --quiet --network none --tag bench:$version . >/dev/null
        done
        docker tag bench:new {REFERENCE}; rm -rf /data/image
        docker image inspect -f '{{{{.Size}}}}' bench:new
        """
        size = int(self.inside(SOURCE, script).split()[-1])
        save = shlex.join(self.command(SOURCE, "docker save bench:old"))
        load_ = shlex.join(["docker", "exec", "-i", self.layout.container(2), "docker", "load", "--quiet"])
        run(["/bin/sh", "-c", f"{save} | {load_}"])
        return size, layer

    def old_image(self, machine: int) -> None:
        """The receiver has the old image under the fleet's name, and no layer of the new one."""
        script = f"""
        docker tag bench:old {REFERENCE}
        old=$(docker image inspect -f '{{{{.Id}}}}' bench:old)
        for id in $(docker images --all --quiet --no-trunc | sort -u); do
            [ "$id" = "$old" ] || docker rmi --force "$id" >/dev/null
        done
        rm -rf /var/lib/fleetctl; sync -f /var/lib/docker
        """
        self.inside(machine, script)

    def same_image(self, machine: int) -> bool:
        look = f"docker image inspect -f '{{{{.Id}}}} {{{{.RootFS.Layers}}}}' {REFERENCE}"
        return self.inside(machine, look) == self.inside(SOURCE, look)


@contextmanager
def hosts(folder: Path, receivers: int, data_size: int) -> Iterator[Hosts]:
    """The machines, gone again whatever happens: an error, Ctrl-C, a hang-up."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    machines = Hosts(folder, receivers, data_size)
    try:
        machines.up()
        yield machines
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        machines.down()
