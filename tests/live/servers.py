"""A real nginx with our Lua modules and small backends, all on loopback, each ended by its own pid."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from fleetctl.balancer import config, peers
from fleetctl.balancer.peers import Peer
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Inventory

CHECKOUT = Path(__file__).parents[2]
NGINX = "/usr/sbin/nginx"
KEY = "sk-live-test-0123456789"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(true: Callable[[], Any], seconds: float = 10, every: float = 0.02) -> Any:
    """Wait for a condition; its value. Fails the test when it does not become true in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = true()
        if value:
            return value
        assert time.monotonic() < deadline, f"not true within {seconds} s: {true}"
        time.sleep(every)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw_headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    port: int,
    path: str = "/v1/models",
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
    timeout: float = 20,
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        sent = {name: value.encode().decode("latin-1") for name, value in (headers or {}).items()}
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        pairs = answer.getheaders()
        try:
            content = answer.read()
        except http.client.IncompleteRead as error:
            content = error.partial
        return Answer(answer.status, {name.lower(): value for name, value in pairs}, pairs, content)
    finally:
        connection.close()


@dataclass
class Behaviour:
    """What a backend does next; changed by tests while it runs."""

    status: int = 200
    delay: float = 0.0
    health_delay: float = 0.0
    health_status: int = 200
    chunks: int = 0
    chunk_gap: float = 0.0
    die_after_chunks: int | None = None
    drop: bool = False
    stall_completions: bool = False
    keys: tuple[str, ...] = ()  # when there are any: every other request is answered 401


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    length: int


class Backend:
    """One HTTP/1.1 backend with keep-alive: counts what it ran, streams, stalls, dies as told."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self.behaviour = Behaviour()
        self.seen: list[Seen] = []
        self.probes: list[Seen] = []
        self.resume = threading.Event()
        self._server: http.server.ThreadingHTTPServer | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        backend = self

        class Handler(_Handler):
            owner = backend

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512
            allow_reuse_address = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._connections: set[socket.socket] = set()
        self._server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def kill(self) -> None:
        """As kill -9: listener gone, every connection reset."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        for connection in list(self._connections):
            reset(connection)


def reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Backend

    def setup(self) -> None:
        super().setup()
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.owner._connections.add(self.request)

    def finish(self) -> None:
        self.owner._connections.discard(self.request)
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _serve(self, body: bytes) -> None:
        how = self.owner.behaviour
        seen = Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, len(body))
        if self.path == "/health":
            self.owner.probes.append(seen)
            time.sleep(how.health_delay)
            self._answer(how.health_status, b"")
            return
        if how.keys and self.headers.get("Authorization", "").partition(" ")[2] not in how.keys:
            self._answer(401, b'{"error":"Unauthorized"}')
            return
        if self.headers.get("X-Fleetctl-Probe"):
            self.owner.probes.append(seen)
            if how.stall_completions:
                self.owner.resume.wait(60)
            self._answer(200, b'{"choices":[{"text":"1"}]}')
            return
        self.owner.seen.append(seen)
        if how.drop:
            reset(self.connection)
            self.close_connection = True
            return
        if how.delay:
            self.owner.resume.wait(how.delay)
        if how.chunks:
            self._stream(how)
        else:
            self._answer(how.status, json.dumps({"port": self.owner.port, "bytes": len(body)}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("access-control-allow-origin", "*")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, how: Behaviour) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(how.chunks):
            if how.die_after_chunks is not None and number >= how.die_after_chunks:
                reset(self.connection)
                self.close_connection = True
                return
            self._chunk(f'data: {{"n":{number},"at":{time.time()}}}\n\n'.encode())
            time.sleep(how.chunk_gap)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


@dataclass
class Balancer:
    """A running balancer in `folder`."""

    folder: Path
    fleet: Fleet
    port: int
    state_port: int
    flavour: config.Flavour = field(default_factory=lambda: config.FLAVOURS["distribution"])
    process: subprocess.Popen[bytes] | None = None
    patches: dict[str, tuple[str, str]] = field(default_factory=dict)
    tls: bool = False

    def render(self) -> None:
        places = config.Places(
            folder=PurePosixPath(self.folder / "balancer"),
            logs=PurePosixPath(self.folder / "logs"),
            pid=PurePosixPath(self.folder / "pid"),
            listen=f"127.0.0.1:{self.port}",
            state_listen=f"127.0.0.1:{self.state_port}",
            api_key=PurePosixPath(self.folder / "api-key"),
        )
        self.files = config.render(self.fleet, self.flavour, places)
        for name, text in self.files.items():
            path = self.folder / "balancer" / name
            old, new = self.patches.get(name, ("", ""))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new) if old else text)
        (self.folder / "logs").mkdir(exist_ok=True)
        key = self.folder / "api-key"
        key.write_text(KEY + "\n")
        key.chmod(0o600)

    @property
    def peers_file(self) -> Path:
        return self.folder / "balancer" / "peers"

    def write_peers(self, text: str) -> None:
        fresh = self.peers_file.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.peers_file)

    def set_peers(self, table: list[Peer]) -> None:
        """Replace the table and wait until every worker says that it holds it."""
        text = peers.render(table)
        self.write_peers(text)
        eventually(lambda: self.state()["version"] == peers.version(text), 5)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [NGINX, "-c", str(self.folder / "balancer" / "nginx.conf"), "-g", "daemon off;"],
            stderr=subprocess.PIPE,
        )
        eventually(self._answers, 10)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read().decode() + self.error_log())
        try:
            return request(self.state_port, "/state").status == 200
        except OSError:
            return False

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(10)

    def reload(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def workers(self) -> list[int]:
        assert self.process is not None
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def state(self) -> Any:
        return request(self.state_port, "/state").json

    def inflight(self) -> dict[str, int]:
        return dict(request(self.state_port, "/inflight").json)

    def health_of(self, peer: str) -> str:
        return next(row["health"] for row in self.state()["peers"] if row["id"] == peer)

    def ask(self, session: str | None = None, path: str = "/v1/models", **more: Any) -> Answer:
        headers = {**({"X-Session-ID": session} if session is not None else {}), **more.pop("headers", {})}
        return request(self.port, path, headers=headers, **more)

    def route(self, keys: list[bytes]) -> list[dict[str, Any]]:
        """Where the balancer would send each key, whatever bytes it has."""
        from urllib.parse import quote_from_bytes

        body = "".join(quote_from_bytes(key, safe="") + "\n" for key in keys).encode()
        return list(request(self.state_port, "/route", method="POST", body=body, timeout=60).json)

    def access_log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "logs/access.log").read_text().splitlines()]

    def logged(self, **fields: Any) -> dict[str, Any]:
        """The line of the access log that has these fields, once it is there."""

        def find() -> dict[str, Any] | None:
            for line in self.access_log():
                if all(line.get(name) == value for name, value in fields.items()):
                    return line
            return None

        found = eventually(find, 5)
        assert isinstance(found, dict)
        return found

    def error_log(self) -> str:
        path = self.folder / "logs/error.log"
        return path.read_text() if path.exists() else ""


def fleet(engine: dict[str, Any] | None = None, **balancer: Any) -> Fleet:
    """The report's fleet, with keys of its balancer section replaced."""
    document = yaml.safe_load((CHECKOUT / "inventory.yaml").read_text())
    document["balancer"].update(balancer)
    document["engine"].update(engine or {})
    return Fleet(Inventory.model_validate(document), CHECKOUT / "inventory.yaml")


def make(
    folder: Path,
    table: list[Peer],
    engine: dict[str, Any] | None = None,
    patches: dict[str, tuple[str, str]] | None = None,
    **balancer: Any,
) -> Balancer:
    """A started balancer over these peers; patches shorten limits that no inventory sets."""
    folder.chmod(0o755)  # the workers are not root
    made = Balancer(folder, fleet(engine, **balancer), free_port(), free_port(), patches=patches or {})
    made.render()
    made.write_peers(peers.render(table))
    made.start()
    return made
