"""Issue 2, section E, on a real nginx: what a browser, a hostile client and the engine see."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer
from tests.live.conftest import Start, table
from tests.live.servers import Backend, Balancer, eventually, free_port, request


def origins(balancer: Balancer, path: str, **more: Any) -> list[str]:
    answer = request(balancer.port, path, **more)
    return [value for name, value in answer.raw_headers if name.lower() == "access-control-allow-origin"]


def test_every_answer_has_exactly_one_allowed_origin(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), body_limit="1m")
    assert origins(balancer, "/v1/models") == ["*"]
    for backend in backends:
        backend.behaviour.status = 401
    assert origins(balancer, "/v1/models") == ["*"]
    assert origins(balancer, "/nowhere") == ["*"]
    assert origins(balancer, "/health") == ["*"]
    assert origins(balancer, "/v1/chat/completions", method="POST", body=b"x" * 2_000_000) == ["*"]
    for backend in backends:
        backend.behaviour.drop = True
    assert origins(balancer, "/v1/chat/completions", method="POST", body=b"{}") == ["*"]
    balancer.set_peers([])
    assert origins(balancer, "/v1/models") == ["*"]


def test_a_preflight_reflects_what_the_browser_asks_for(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    asked = "authorization,content-type,x-session-id,x-stainless-os,x-stainless-arch"
    answer = request(
        balancer.port,
        "/v1/chat/completions",
        method="OPTIONS",
        headers={
            "Origin": "https://chat.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": asked,
        },
    )
    assert answer.status == 204
    assert answer.headers["access-control-allow-headers"] == asked
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-max-age"] == "86400"
    assert "Access-Control-Request-Headers" in answer.headers["vary"]
    assert not any(backend.seen for backend in backends)
    assert "access-control-allow-headers" not in request(balancer.port).headers


def test_origins_can_be_limited(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), cors_origins=["https://a.example", "https://b.example"])
    for origin, allowed in (("https://b.example", ["https://b.example"]), ("https://evil.example", [])):
        assert origins(balancer, "/v1/models", headers={"Origin": origin}) == allowed


def test_the_engine_sees_who_asked_and_cannot_be_lied_to(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    answer = balancer.ask(
        "s",
        headers={"X-Forwarded-For": "6.6.6.6", "X-Request-Id": "forged", "X-Backend-Instance": "forged"},
    )
    seen = next(backend.seen[0] for backend in backends if backend.seen)
    assert seen.headers["x-forwarded-for"] == "127.0.0.1"
    assert seen.headers["x-real-ip"] == "127.0.0.1"
    assert seen.headers["x-forwarded-proto"] == "http"
    assert seen.headers["x-request-id"] == answer.headers["x-request-id"] != "forged"
    decision = routing.route("s", table(backends))
    assert decision is not None
    assert seen.headers["x-backend-instance"] == decision.peer.id
    assert "server" not in answer.headers or not any(c.isdigit() for c in answer.headers["server"]), "no version"
    line = balancer.logged(id=answer.headers["x-request-id"])
    assert (line["backend"], line["upstream"]) == (decision.peer.id, decision.peer.address)
    assert (line["retries"], line["source"], line["sid"]) == (0, "session", routing.sid("s"))
    assert all(float(line[timing]) >= 0 for timing in ("rt", "uct", "uht", "urt"))


def test_a_trusted_proxy_says_who_asked(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), trusted_proxies=["127.0.0.0/8"])
    balancer.ask(None, headers={"X-Forwarded-For": "6.6.6.6, 203.0.113.7"})
    seen = next(backend.seen[0] for backend in backends if backend.seen)
    assert seen.headers["x-forwarded-for"] == "203.0.113.7"


def test_a_body_over_the_limit_is_a_json_413(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), body_limit="1m")
    answer = balancer.ask("s", "/v1/chat/completions", method="POST", body=b"x" * 1_200_000)
    assert (answer.status, answer.json["error"]["code"]) == (413, 413)


def test_a_chunked_body_over_the_limit_is_a_json_413(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), body_limit="1m")
    connection = http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=10)
    pieces = (b"x" * 65536 for _ in range(20))
    connection.request("POST", "/v1/chat/completions", body=pieces, encode_chunked=True)
    answer = connection.getresponse()
    assert answer.status == 413
    assert b'"code":413' in answer.read()
    connection.close()


def test_a_session_of_8_kib_is_routed_and_a_header_of_9_kb_is_a_json_431(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    key = "k" * 8192
    decision = routing.route(key, table(backends))
    assert decision is not None
    assert balancer.ask(key).headers["x-upstream-addr"] == decision.peer.address
    answer = balancer.ask("k" * 9216)
    assert (answer.status, answer.json["error"]["code"]) == (431, 431)
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("session", ['a"b', "a'b;{}", "a\\n b", "${jndi}", "a\tb", "ü-ß-张三", "%0a%0d"])
def test_a_hostile_session_id_is_only_a_key(start: Start, backends: list[Backend], session: str) -> None:
    balancer = start(table(backends))
    decision = routing.route(session, table(backends))
    assert decision is not None
    assert balancer.ask(session).headers["x-upstream-addr"] == decision.peer.address
    assert balancer.logged(sid=routing.sid(session))["status"] == 200


def test_a_newline_in_a_header_or_no_http_at_all_is_a_400(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    for raw in (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Session-ID: a\0b\r\n\r\n", b"\x16\x03\x01 nonsense\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", balancer.port), 5) as client:
            client.sendall(raw)
            answer = client.recv(4096)
        assert b" 400 " in answer.splitlines()[0]
        assert b"invalid_request_error" in answer
    assert balancer.ask("s").status == 200


def test_sixty_four_backends_and_an_ipv6_address(start: Start) -> None:
    many = [
        Peer(f"{machine}/{index}", f"10.9.{machine}.1:{8000 + index}") for machine in range(16) for index in range(4)
    ]
    balancer = start(many)
    assert len(balancer.state()["peers"]) == 64
    health = request(balancer.port, "/health").json
    assert (health["backends"], health["machines"]) == (64, [str(machine) for machine in range(16)])
    assert len({row["id"] for row in balancer.route([b"%d" % n for n in range(1000)])}) == 64


def test_an_ipv6_backend_is_reached(start: Start) -> None:
    import http.server

    class Six(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = Six(("::1", free_port()), Handler)
    except OSError:
        pytest.skip("this machine has no IPv6")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    address = f"[::1]:{server.server_address[1]}"
    answer = start([Peer("69/0", address)]).ask("s")
    server.shutdown()
    server.server_close()
    assert (answer.status, answer.headers["x-upstream-addr"]) == (200, address)


def test_too_many_requests_of_one_key_are_429_with_retry_after(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), requests_per_second=0.5, burst=3)
    assert [balancer.ask("s").status for _ in range(4)] == [200, 200, 200, 429]
    answer = balancer.ask("s")
    assert answer.json["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after"]) >= 1
    assert balancer.ask("other").status == 200


def test_more_than_the_fleet_can_hold_is_a_429_at_once(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), engine={"max-num-seqs": 1}, queue_factor=1.5)
    for backend in backends:
        backend.behaviour.delay = 30
    asked = [threading.Thread(target=balancer.ask, args=(f"s{n}",)) for n in range(6)]
    for thread in asked:
        thread.start()
    eventually(lambda: sum(balancer.inflight().values()) == 6)
    answer = balancer.ask("one more")
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    for backend in backends:
        backend.resume.set()
    for thread in asked:
        thread.join()


def test_a_busy_backend_passes_sessions_on_above_the_floor(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), load_floor=2)
    for backend in backends:
        backend.behaviour.delay = 30
    asked = []
    for number in range(8):
        thread = threading.Thread(target=balancer.ask, args=("hot",))
        thread.start()
        asked.append(thread)
        eventually(lambda n=number: sum(balancer.inflight().values()) == n + 1)
    counts = list(balancer.inflight().values())
    assert max(counts) <= 4, "1.5 times the fair share of 8, rounded up"
    assert counts.count(0) <= 1
    for backend in backends:
        backend.resume.set()
    for thread in asked:
        thread.join()
    eventually(lambda: len(balancer.access_log()) == 8)
    assert {line["why"] for line in balancer.access_log()} == {"primary", "spill"}


def test_least_conn_spreads_what_has_no_session(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), affinity="least_conn")
    for backend in backends:
        backend.behaviour.delay = 30
    asked = []
    for number in range(8):
        thread = threading.Thread(target=balancer.ask, args=(None,))
        thread.start()
        asked.append(thread)
        eventually(lambda n=number: sum(balancer.inflight().values()) == n + 1)
    assert set(balancer.inflight().values()) == {2}
    for backend in backends:
        backend.resume.set()
    for thread in asked:
        thread.join()


def test_other_session_headers_and_another_key_order(start: Start, backends: list[Backend]) -> None:
    balancer = start(
        table(backends),
        session_headers=["X-Session-ID", "X-Claude-Code-Session-Id", "session_id"],
        key_order=["bearer", "session", "client"],
    )
    for headers, key in (
        ({"X-Claude-Code-Session-Id": "cc-5"}, "cc-5"),
        ({"session_id": "under-5"}, "under-5"),
        ({"X-Session-ID": "", "session_id": "under-6"}, "under-6"),
        ({"Authorization": "Bearer t-5", "X-Session-ID": "s"}, "t-5"),
    ):
        decision = routing.route(key, table(backends))
        assert decision is not None
        assert request(balancer.port, headers=headers).headers["x-upstream-addr"] == decision.peer.address


def test_a_websocket_upgrade_reaches_the_engine(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    balancer.ask("s", "/v1/realtime", headers={"Connection": "Upgrade", "Upgrade": "websocket"})
    seen = next(backend.seen[0] for backend in backends if backend.seen)
    assert (seen.headers["connection"], seen.headers["upgrade"]) == ("upgrade", "websocket")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    crt, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            *f"-days 2 -subj /CN={name} -keyout {key} -out {crt}".split(),
        ],
        check=True,
        capture_output=True,
    )
    return crt, key


def test_tls_serves_and_a_certificate_that_does_not_fit_its_key_is_refused_before_it_serves(
    start: Start, backends: list[Backend], tmp_path: Path
) -> None:
    crt, key = certificate(tmp_path, "balancer.example")
    balancer = start(table(backends), tls={"certificate": str(crt), "key": str(key)})
    context = ssl.create_default_context(cafile=str(crt))
    context.check_hostname = False
    connection = http.client.HTTPSConnection("127.0.0.1", balancer.port, context=context, timeout=5)
    connection.request("GET", "/v1/models", headers={"X-Session-ID": "s"})
    assert connection.getresponse().status == 200
    connection.close()
    assert next(b.seen[0] for b in backends if b.seen).headers["x-forwarded-proto"] == "https"
    other, _ = certificate(tmp_path, "other.example")
    crt.write_text(other.read_text())
    test = subprocess.run(
        ["/usr/sbin/nginx", "-t", "-c", str(balancer.folder / "balancer/nginx.conf")], check=False, capture_output=True
    )
    assert test.returncode != 0
    assert b"key values mismatch" in test.stderr


def test_the_metrics_are_whole_and_say_where_requests_went(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    for number in range(20):
        balancer.ask(f"s{number}")
    balancer.ask(None)

    def total(name: str) -> float:
        page = request(balancer.state_port, "/metrics").body.decode()
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))

    eventually(lambda: total("fleet_requests_total") == 21)
    assert total('fleet_affinity_source_total{source="session"}') == 20
    assert total("fleet_ttfb_seconds_count") == 21
    assert total("fleet_backend_up") == 4
    assert total("fleet_inflight") == 0
