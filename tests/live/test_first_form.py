"""Issue 1, section G, on a real nginx."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

from fleetctl.balancer import config, peers, routing
from fleetctl.balancer.peers import Peer, PeerState
from tests.live.conftest import Start, table
from tests.live.servers import KEY, Backend, eventually, request

SIXTEEN = [
    Peer(f"{machine}/{index}", f"10.255.254.{machine}:{8000 + index}")
    for machine in (69, 68, 67, 66)
    for index in range(4)
]


def test_sessions_of_the_report_go_where_the_report_sends_them(start: Start) -> None:
    balancer = start(SIXTEEN)
    found = balancer.route([b"abc", b"user-1", "张三".encode()])
    assert [row["address"] for row in found] == [
        "10.255.254.67:8000",
        "10.255.254.69:8003",
        "10.255.254.67:8002",
    ]


def test_a_session_stays_on_its_backend_and_the_answer_names_it(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    for session in ("abc", "user-1", "张三", "x" * 200):
        chosen = routing.route(session, table(backends))
        assert chosen is not None
        for _ in range(3):
            answer = balancer.ask(session)
            assert answer.headers["x-upstream-addr"] == chosen.peer.address
            assert answer.json["port"] == int(chosen.peer.address.split(":")[1])


def test_the_key_is_session_then_bearer_in_any_case_then_client(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))

    def goes_to(**headers: str) -> str:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return request(balancer.port, headers=sent).headers["x-upstream-addr"]

    def expected(key: str) -> str:
        decision = routing.route(key, table(backends))
        assert decision is not None
        return decision.peer.address

    assert goes_to(X_Session_ID="s-9", Authorization="Bearer tok") == expected("s-9")
    for scheme in ("Bearer", "bearer", "BEARER  "):
        assert goes_to(Authorization=f"{scheme} tok-17") == expected("tok-17")
    assert goes_to() == expected("127.0.0.1")
    assert goes_to(Authorization="Basic dXNlcg==") == expected("127.0.0.1")


def test_only_v1_is_proxied_and_the_rest_is_a_json_404(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    for path in ("/invocations", "/metrics", "/tokenize", "/", "/v1", "/healthXYZ", "/state", "/pause"):
        answer = balancer.ask("s", path)
        assert answer.status == 404, path
        assert answer.json["error"]["request_id"] == answer.headers["x-request-id"]
        assert answer.headers["access-control-allow-origin"] == "*"
    assert not any(backend.seen for backend in backends)


def test_a_new_table_is_in_force_within_a_second_without_reload(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends)[:2])
    before = balancer.workers()
    balancer.set_peers(table(backends))
    hit = {balancer.ask(f"s{number}").json["port"] for number in range(60)}
    assert hit == {backend.port for backend in backends}
    assert balancer.workers() == before


def test_the_last_good_table_stays_when_the_file_is_truncated_or_garbage(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    good = balancer.state()["version"]
    whole = peers.render(table(backends)[:1])
    for bad in (whole[:-8], whole.replace(" up", " off"), "", "\0\1garbage", whole + whole):
        balancer.write_peers(bad)
        eventually(lambda: "refused" in balancer.error_log(), 5)
        (balancer.folder / "logs/error.log").write_text("")
        assert balancer.state()["version"] == good
        assert balancer.ask("s").status == 200
    balancer.peers_file.unlink()
    eventually(lambda: "unreadable" in balancer.error_log(), 5)
    assert balancer.state()["version"] == good
    balancer.set_peers(table(backends)[:1])
    assert len(balancer.state()["peers"]) == 1


def test_no_backend_at_all_is_a_json_503(start: Start) -> None:
    balancer = start([])
    answer = balancer.ask("s")
    assert answer.status == 503
    assert answer.json["error"]["code"] == 503
    assert answer.headers["retry-after"]
    assert answer.headers["access-control-allow-origin"] == "*"
    health = request(balancer.port, "/health")
    assert (health.status, health.json["backends"]) == (503, 0)


def test_a_drained_backend_keeps_its_place_and_only_its_sessions_move(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    sessions = [f"s{number}" for number in range(40)]
    before = {session: balancer.ask(session).headers["x-upstream-addr"] for session in sessions}
    for state in (PeerState.DRAIN, PeerState.HELD, PeerState.OFF):
        drained = [Peer(p.id, p.address, state=state if p.id == "69/1" else PeerState.UP) for p in table(backends)]
        balancer.set_peers(drained)
        for session in sessions:
            now = balancer.ask(session).headers["x-upstream-addr"]
            decision = routing.route(session, drained)
            assert decision is not None
            assert now == decision.peer.address
            assert (now == before[session]) == (before[session] != backends[1].address)


def test_requests_in_flight_are_counted_and_given_back(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    for backend in backends:
        backend.behaviour.delay = 30
    asked = [threading.Thread(target=balancer.ask, args=(f"s{n}",)) for n in range(12)]
    for thread in asked:
        thread.start()
    eventually(lambda: sum(balancer.inflight().values()) == 12)
    assert {row["id"]: row["inflight"] for row in balancer.state()["peers"]} == balancer.inflight()
    for backend in backends:
        backend.resume.set()
    for thread in asked:
        thread.join()
    eventually(lambda: sum(balancer.inflight().values()) == 0)


def test_what_a_killed_worker_held_is_not_counted_for_ever(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), workers=2)
    for backend in backends:
        backend.behaviour.delay = 30

    def ask() -> None:
        with contextlib.suppress(OSError):
            balancer.ask("s")

    asked = [threading.Thread(target=ask) for _ in range(6)]
    for thread in asked:
        thread.start()
    eventually(lambda: sum(balancer.inflight().values()) == 6)
    old = balancer.workers()
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(set(balancer.workers()) - set(old)) == 2)
    eventually(lambda: sum(balancer.inflight().values()) == 0, 8)
    for backend in backends:
        backend.resume.set()
        backend.behaviour.delay = 0
    for thread in asked:
        thread.join()
    assert balancer.ask("s").status == 200
    eventually(lambda: sum(balancer.inflight().values()) == 0)


def test_requests_of_an_old_worker_stay_counted_over_a_reload(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    for backend in backends:
        backend.behaviour.delay = 30
    thread = threading.Thread(target=balancer.ask, args=("s",))
    thread.start()
    eventually(lambda: sum(balancer.inflight().values()) == 1)
    old = balancer.workers()
    balancer.reload()
    eventually(lambda: len(set(balancer.workers()) - set(old)) == 2)
    eventually(lambda: balancer.state()["version"] != "")
    assert sum(balancer.inflight().values()) == 1
    for backend in backends:
        backend.resume.set()
    thread.join()
    eventually(lambda: sum(balancer.inflight().values()) == 0)


def test_a_stream_arrives_chunk_by_chunk(start: Start, backends: list[Backend]) -> None:
    import http.client
    import json
    import time

    balancer = start(table(backends))
    for backend in backends:
        backend.behaviour.chunks, backend.behaviour.chunk_gap = 6, 0.1
    connection = http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=10)
    connection.request("POST", "/v1/chat/completions", body=b"{}")
    answer = connection.getresponse()
    late = []
    for line in iter(answer.readline, b""):
        if line.startswith(b"data: {"):
            late.append(time.time() - json.loads(line[6:])["at"])
    connection.close()
    assert len(late) == 6
    assert max(late) < 0.09


def test_no_key_reaches_a_log(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    balancer.ask(None, headers={"Authorization": f"Bearer {KEY}"})
    balancer.ask("secret-session", headers={"Authorization": f"Bearer {KEY}"})
    line = balancer.logged(source="session")
    assert line["sid"] == routing.sid("secret-session")
    assert balancer.logged(source="bearer")["sid"] == routing.sid(KEY)
    for log in Path(balancer.folder / "logs").glob("*.log"):
        assert KEY not in log.read_text()
        assert "secret-session" not in log.read_text()


def test_the_state_says_which_configuration_is_loaded_and_since_when(start: Start) -> None:
    balancer = start([])
    before = balancer.state()
    assert before["config"] == config.config_hash(balancer.files)
    balancer.reload()
    eventually(lambda: balancer.state()["loaded"] > before["loaded"])
    # A file that does not load is not loaded: nginx keeps the old configuration and says nothing.
    loaded = balancer.state()["loaded"]
    (balancer.folder / "balancer/lua/keys.lua").write_text("this is not lua")
    balancer.reload()
    eventually(lambda: "keys.lua" in balancer.error_log())
    assert balancer.state()["loaded"] == loaded
