"""Everything that is compared, started the same way: pinned to one core, over the same 16 backends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import yaml

from fleetctl.balancer import config, peers
from fleetctl.balancer.peers import Peer
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Inventory

CHECKOUT = Path(__file__).parents[2]
NGINX = "/usr/sbin/nginx"
LUA = "\n".join(config.FLAVOURS["distribution"].modules)
BALANCER_CORE, OTHER_CORE = (0, 1) if (os.cpu_count() or 1) > 1 else (0, 0)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@dataclass
class Running:
    """A started process, ended by its own pid."""

    process: subprocess.Popen[bytes]
    port: int
    state_port: int = 0

    def cpu(self) -> float:
        """CPU seconds of the process and its living children."""
        ticks = 0
        for pid in [self.process.pid, *children(self.process.pid)]:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def spawn(words: list[str], core: int, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(["taskset", "-c", str(core), *words], stdout=out, stderr=out)


def wait_for(port: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"nothing listens on {port}")


@dataclass
class Contender:
    name: str
    folder: Path
    backends: list[int]
    extra: dict[str, object] = field(default_factory=dict)

    def start(self) -> Running:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        port, state = free_ports(2)
        words = getattr(self, "_" + re.sub(r"\W", "_", self.name.split(",")[0]))(port, state)
        running = Running(spawn(words, BALANCER_CORE, self.folder / "log"), port, state)
        wait_for(port)
        return running

    def table(self) -> list[Peer]:
        return [Peer(f"{69 - n // 4}/{n % 4}", f"127.0.0.1:{p}") for n, p in enumerate(self.backends)]

    def write_peers(self, table: list[Peer]) -> None:
        fresh = self.folder / "peers.new"
        fresh.write_text(peers.render(table))
        fresh.rename(self.folder / "peers")

    def _fleetctl(self, port: int, state: int) -> list[str]:
        document = yaml.safe_load((CHECKOUT / "inventory.yaml").read_text())
        document["balancer"].update({"workers": 1, **self.extra})
        fleet = Fleet(Inventory.model_validate(document), CHECKOUT / "inventory.yaml")
        where = PurePosixPath(self.folder)
        places = config.Places(
            where, where, where / "pid", f"127.0.0.1:{port}", f"127.0.0.1:{state}", where / "api-key"
        )
        for name, text in config.render(fleet, config.FLAVOURS["distribution"], places).items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
        (self.folder / "api-key").write_text("sk-bench\n")
        (self.folder / "api-key").chmod(0o600)
        self.write_peers(self.table())
        return [NGINX, "-c", str(self.folder / "nginx.conf"), "-g", "daemon off;"]

    def _nginx(self, text: str) -> list[str]:
        (self.folder / "nginx.conf").write_text(text)
        return [NGINX, "-c", str(self.folder / "nginx.conf"), "-g", "daemon off;"]

    def _report(self, port: int, _: int) -> list[str]:
        """The report's nginx.conf (its section 6.3) with its two missing braces, these ports and one worker."""
        upstreams = "\n".join(
            f"upstream backend_{8000 + n} {{ server 127.0.0.1:{p}; keepalive 32; }}"
            for n, p in enumerate(self.backends)
        )
        names = ", ".join(f'"backend_{8000 + n}"' for n in range(len(self.backends)))
        text = (Path(__file__).parent / "report.conf").read_text()
        values = {
            "modules": LUA,
            "upstreams": upstreams,
            "names": names,
            "port": str(port),
            "count": str(len(self.backends)),
            "folder": str(self.folder),
        }
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        return self._nginx(text)

    def _nginx_hash(self, port: int, _: int) -> list[str]:
        servers = "\n".join(f"server 127.0.0.1:{p} max_fails=1 fail_timeout=10s;" for p in self.backends)
        return self._nginx(
            f"""worker_processes 1; worker_rlimit_nofile 65536; pid {self.folder}/pid;
error_log {self.folder}/error.log warn; events {{ worker_connections 4096; }}
http {{ log_format l '$remote_addr [$time_local] "$request" $status $upstream_addr $request_time';
access_log {self.folder}/access.log l; upstream u {{ hash $http_x_session_id consistent; {servers} keepalive 64; }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://u; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_buffering off; proxy_connect_timeout 2s; proxy_read_timeout 3600s;
proxy_next_upstream error timeout http_502 http_503 non_idempotent; proxy_next_upstream_tries 2;
add_header X-Upstream-Addr $upstream_addr always; }} }} }}
"""
        )

    def _haproxy(self, port: int, _: int) -> list[str]:
        servers = "\n".join(f"    server b{n} 127.0.0.1:{p} check" for n, p in enumerate(self.backends))
        (self.folder / "haproxy.cfg").write_text(
            f"""global
    maxconn 4096
    nbthread 1
defaults
    mode http
    timeout connect 2s
    timeout client 3600s
    timeout server 3600s
    option redispatch 1
    option http-no-delay
    retry-on conn-failure empty-response 503
frontend f
    bind 127.0.0.1:{port}
    default_backend b
backend b
    balance hdr(X-Session-ID)
    hash-type consistent
    option httpchk GET /health
    default-server inter 2s fall 3 rise 2
{servers}
"""
        )
        return ["haproxy", "-db", "-f", str(self.folder / "haproxy.cfg")]

    def _router(self, words: list[str], port: int) -> list[str]:
        urls = [f"http://127.0.0.1:{p}" for p in self.backends]
        log = ["--log-level", "error", "--prometheus-port", str(free_ports(1)[0])]
        return [*words, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls, *log]

    def _vllm_router(self, port: int, _: int) -> list[str]:
        health = ["--health-check-interval-secs", "2", "--health-check-timeout-secs", "1"]
        return [*self._router([find("vllm-router")], port), "--policy", "consistent_hash", *health]

    def _sglang_router(self, port: int, _: int) -> list[str]:
        health = ["--health-check-interval-secs", "2", "--health-check-timeout-secs", "1"]
        return [*self._router([find("sglang-router"), "launch"], port), "--policy", "manual", *health]


def find(name: str) -> str:
    """A router's command: on PATH, or in $ROUTERS/bin (a venv of its own: they pin many libraries)."""
    found = shutil.which(name) or shutil.which(name, path=os.environ.get("ROUTERS", "") + "/bin")
    return found or ""


def available(folder: Path, backends: list[int]) -> list[Contender]:
    """Those that can run here, in the order of the table."""
    names = ["report", "nginx-hash", "fleetctl"]
    if shutil.which("haproxy"):
        names.append("haproxy")
    names += [name for name in ("vllm-router", "sglang-router") if find(name)]
    made = [Contender(name, folder / name, backends) for name in names]
    rendezvous = Contender("fleetctl,rendezvous", folder / "fleetctl-rendezvous", backends, {"affinity": "rendezvous"})
    return [*made, rendezvous]
