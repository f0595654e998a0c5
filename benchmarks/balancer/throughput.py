"""Requests per second with nothing behind but an nginx that answers: what the balancer itself costs."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contenders import NGINX, OTHER_CORE, Contender, Running, spawn, wait_for

SCRIPT = """
local n = 0
wrk.method = "POST"
wrk.body = '{"model":"m","messages":[{"role":"user","content":"hello"}]}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer sk-bench"
function request()
  n = n + 1
  local session = "user-" .. n % 1000
  wrk.headers["X-Session-ID"] = session
  wrk.headers["X-SMG-Routing-Key"] = session
  return wrk.format()
end
"""


@dataclass(frozen=True)
class Sample:
    rate: float
    """requests per second"""
    p50_ms: float
    cpu_us: float
    """CPU microseconds of the balancer for one request"""
    idle: float
    """share of the wall time in which the generator did nothing"""
    errors: int


def still_backends(folder: Path, ports: Sequence[int]) -> Running:
    """One nginx on all ports, pinned away from the balancer."""
    folder.mkdir(parents=True, exist_ok=True)
    listens = " ".join(f"listen 127.0.0.1:{port};" for port in ports)
    body = '{"id":"x","object":"chat.completion","model":"m","choices":[]}'
    (folder / "nginx.conf").write_text(
        f"""worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000; server {{ {listens}
default_type application/json; location / {{ return 200 '{body}'; }} }} }}
"""
    )
    words = [NGINX, "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    running = Running(spawn(words, OTHER_CORE, folder / "log"), ports[0])
    wait_for(ports[0])
    return running


def measure(running: Running, folder: Path, seconds: int, connections: int = 16) -> Sample:
    script = folder / "wrk.lua"
    script.write_text(SCRIPT)
    words = ["taskset", "-c", str(OTHER_CORE), "bash", "-c"]
    command = f"time wrk -t1 -c{connections} -d{seconds}s --latency -s {script} http://127.0.0.1:{running.port}/v1/chat/completions"
    before = running.cpu()
    ran = subprocess.run([*words, command], capture_output=True, text=True, check=True)
    spent = running.cpu() - before
    number = int(re.search(r"(\d+) requests in", ran.stdout)[1])  # type: ignore[index]  # wrk always prints it
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", ran.stdout)[1])  # type: ignore[index]
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", ran.stdout)
    used = sum(
        int(minutes) * 60 + float(rest)
        for minutes, rest in re.findall(r"^(?:user|sys)\s+(\d+)m([\d.]+)s", ran.stderr, re.MULTILINE)
    )
    value, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", ran.stdout).groups()  # type: ignore[union-attr]
    p50 = float(value) * {"us": 0.001, "ms": 1, "s": 1000}[unit]
    return Sample(rate, p50, spent / max(1, number) * 1e6, 1 - used / seconds, int(bad[1]) if bad else 0)


def run(contenders: list[Contender], folder: Path, ports: list[int], rounds: int, seconds: int) -> dict[str, Sample]:
    """Medians over interleaved rounds, so that a busy minute of the machine hits all alike."""
    backends = still_backends(folder / "still", ports)
    running: dict[str, Running] = {}
    samples: dict[str, list[Sample]] = {}
    try:
        running["direct"] = Running(backends.process, ports[0])
        running |= {contender.name: contender.start() for contender in contenders}
        for _ in range(rounds):
            for name, each in running.items():
                samples.setdefault(name, []).append(measure(each, folder, seconds))
    finally:
        for name, each in running.items():
            if name != "direct":
                each.stop()
        backends.stop()
    return {
        name: Sample(
            *(
                statistics.median(getattr(each, column) for each in found)
                for column in ("rate", "p50_ms", "cpu_us", "idle")
            ),
            errors=sum(each.errors for each in found),
        )
        for name, found in samples.items()
    }
