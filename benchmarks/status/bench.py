"""`status` and a rollout with nothing to do, beside the same questions asked by other tools, on a lab that serves.

    python benchmarks/status/bench.py [--runs 15]

Whole processes with output to a pipe, interleaved, medians; peak memory is the largest single process. pyinfra and
ansible-core are installed from PyPI into a venv of their own in a cache folder. Prints one table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fleetctl" / "bench"


def peers_venv() -> Path:
    """A venv with pyinfra and ansible-core, made once."""
    venv = CACHE / "venv"
    if not (venv / "bin" / "ansible-playbook").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "-q", "pyinfra>=3,<4", "ansible-core"], check=True)
    return venv


def write_peers(inventory: Path, folder: Path) -> None:
    """The lab as pyinfra and Ansible want to be told of it, with the fleet's own host keys."""
    document = yaml.safe_load(inventory.read_text())
    known = inventory.parent / ".fleetctl" / f"{document['fleet']}.known_hosts"
    hosts, ansible = [], {}
    for machine in document["machines"]:
        ssh = machine["ssh"]
        key = str((inventory.parent / ssh["key"]).resolve())
        units = [
            document["instances"]["name"].replace("{index}", str(i))
            for i in range(document["instances"]["per_machine"])
        ]
        first = document["instances"]["port"]
        urls = [f"http://{machine['address']}:{first + i}/health" for i in range(len(units))]
        common = {"units": units, "urls": urls}
        data = {"ssh_hostname": ssh["host"], "ssh_port": ssh["port"], "ssh_user": ssh["user"], "ssh_key": key}
        data |= {"ssh_known_hosts_file": str(known), **common}
        hosts.append((f"m{machine['id']}", data))
        ansible[f"m{machine['id']}"] = {
            "ansible_host": ssh["host"], "ansible_port": ssh["port"], "ansible_user": ssh["user"],
            "ansible_ssh_private_key_file": key, "ansible_ssh_common_args": f"-o UserKnownHostsFile={known}", **common,
        }  # fmt: skip
    (folder / "inventory.py").write_text(f"fleet = {hosts!r}\n")
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"hosts": ansible}}))
    for name in ("deploy.py", "site.yaml"):
        shutil.copy(HERE / name, folder / name)


def once(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, int, int]:
    """Seconds, exit code and peak KiB of one run."""
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = process.stdout.read() if process.stdout else b""
    _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {code}:\n{output.decode(errors='replace')[-2000:]}")
    return time.monotonic() - started, code, usage.ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--without-peers", action="store_true")
    arguments = parser.parse_args()
    inventory = Path(os.environ["FLEETCTL_INVENTORY"]).resolve()
    folder = CACHE / "status"
    folder.mkdir(parents=True, exist_ok=True)
    fleetctl = str(ROOT / ".venv" / "bin" / "fleetctl")
    commands = {
        "four bare Fabric connections": [sys.executable, str(HERE / "baseline.py"), str(inventory)],
        "fleetctl status": [fleetctl, "-i", str(inventory), "status"],
        "fleetctl rollout, nothing to do": [fleetctl, "rollout", "--yes"],
    }
    commands["fleetctl status"] = [fleetctl, "status", "-i", str(inventory)]
    commands["fleetctl rollout, nothing to do"] = [fleetctl, "rollout", "--yes", "-i", str(inventory)]
    if not arguments.without_peers:
        venv = peers_venv()
        write_peers(inventory, folder)
        commands["pyinfra, the same facts"] = [str(venv / "bin" / "pyinfra"), "-y", "inventory.py", "deploy.py"]
        commands["ansible, the same facts"] = [str(venv / "bin" / "ansible-playbook"), "-i", "hosts.yaml", "site.yaml"]
    environment = {**os.environ, "ANSIBLE_PIPELINING": "True", "ANSIBLE_FORKS": "16", "PYTHONDONTWRITEBYTECODE": ""}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    memory: dict[str, int] = dict.fromkeys(commands, 0)
    for number in range(arguments.runs + 1):
        for name, command in commands.items():
            took, _, peak = once(command, folder, environment)
            if number:  # the first round warms caches up
                seconds[name].append(took)
                memory[name] = max(memory[name], peak)
    report(seconds, memory)


def report(seconds: dict[str, list[float]], memory: dict[str, int]) -> None:
    base = statistics.median(seconds["four bare Fabric connections"])
    print(f"{'':34} {'median s':>9} {'min':>7} {'max':>7} {'ratio':>7} {'MiB':>6}")
    rows = {}
    for name, values in seconds.items():
        median = statistics.median(values)
        spread = f"{median:9.3f} {min(values):7.3f} {max(values):7.3f}"
        print(f"{name:34} {spread} {median / base:7.2f} {memory[name] / 1024:6.0f}")
        rows[name] = {"median": median, "ratio": median / base, "mib": memory[name] / 1024, "n": len(values)}
    print(json.dumps({"schema": 1, "rows": rows}))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
