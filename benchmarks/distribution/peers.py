"""What else brings files and images to machines: each to the same receivers, over the same links, from the source."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from hosts import MODELS, REFERENCE, RUNNING, SOURCE, Hosts, end, run

HERE = Path(__file__).parent
SSH = "ssh -i /root/.ssh/bench -o BatchMode=yes"


def rsync(hosts: Hosts, model: str, machine: int, folder: str = "/data/peer", *options: str) -> float:
    """`rsync -a` on the receiver, one stream; the yardstick."""
    source = f"root@{hosts.address(SOURCE)}:{MODELS}/{model}/"
    return run(hosts.command(machine, f"rsync -a {' '.join(options)} -e '{SSH}' {source} {folder}/")).seconds


def scp(hosts: Hosts, model: str, machine: int) -> float:
    source = f"root@{hosts.address(SOURCE)}:{MODELS}/{model}/*"
    return run(hosts.command(machine, f"scp -q -r -i /root/.ssh/bench -o BatchMode=yes '{source}' /data/peer/")).seconds


def one_by_one(hosts: Hosts, model: str, machines: Sequence[int]) -> float:
    return sum(rsync(hosts, model, machine) for machine in machines)


def at_once(hosts: Hosts, model: str, machines: Sequence[int]) -> float:
    started = time.monotonic()
    with ThreadPoolExecutor(len(machines)) as pool:
        try:
            list(pool.map(lambda machine: rsync(hosts, model, machine), machines))
        except BaseException:
            for process in tuple(RUNNING):
                end(process)
            raise
    return time.monotonic() - started


def ansible_venv(cache: Path) -> Path:
    """A venv with ansible-core, made once."""
    venv = cache / "ansible"
    if not (venv / "bin" / "ansible-playbook").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "-q", "ansible-core"], check=True)
    return venv


def ansible(hosts: Hosts, model: str, machine: int, venv: Path) -> float:
    """The copy module, run on the source as far as the network sees it: what it sends leaves by the source's uplink."""
    folder = hosts.folder / "ansible"
    folder.mkdir(exist_ok=True)
    host = {
        "ansible_host": hosts.address(machine),
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(hosts.layout.key),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={hosts.layout.known_hosts}",
        "folder": str(hosts.disk(SOURCE) / "models" / model),
    }
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"hosts": {f"m{machine}": host}}}))
    playbook = [str(venv / "bin" / "ansible-playbook"), "-i", "hosts.yaml", str(HERE / "copy.yaml")]
    done = run(
        ["nsenter", "--net", "--target", str(hosts.pids[SOURCE]), *playbook],
        cwd=folder,
        ANSIBLE_HOME=str(folder / "home"),
        ANSIBLE_SSH_CONTROL_PATH_DIR=str(folder / "cp"),
        # As Ansible has it, but for how long a connection outlives the run: its namespace is about to go.
        ANSIBLE_SSH_ARGS="-C -o ControlMaster=auto -o ControlPersist=5s",
    )
    return done.seconds


def save_and_load(hosts: Hosts, machine: int) -> float:
    receiver = f"root@{hosts.address(machine)}"
    return run(hosts.command(SOURCE, f"docker save {REFERENCE} | {SSH} {receiver} docker load --quiet")).seconds
