"""Issue 2, section C, on a real nginx: what a lost, hung or refusing backend means to a user."""

from __future__ import annotations

import re
import socket
import threading
import time

import pytest

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer
from tests.live.conftest import Start, table
from tests.live.servers import Answer, Backend, Balancer, eventually, request

SHORT = {"lua/probe.lua": ("SLOW_SECONDS = 10", "SLOW_SECONDS = 2")}


def session_at(peers: list[Peer], index: int) -> str:
    """A session whose home is this peer."""
    for number in range(1000):
        decision = routing.route(f"at-{number}", peers)
        if decision is not None and decision.peer is peers[index]:
            return f"at-{number}"
    raise AssertionError


def ran(backends: list[Backend]) -> int:
    return sum(len(backend.seen) for backend in backends)


def post(balancer: Balancer, session: str, body: bytes = b"{}") -> Answer:
    return balancer.ask(session, "/v1/chat/completions", method="POST", body=body)


def test_a_refused_connection_is_retried_once_on_the_next_in_order(start: Start, backends: list[Backend]) -> None:
    peers = table(backends)
    balancer = start(peers)
    session = session_at(peers, 0)
    backends[0].kill()
    for body in (b"{}", b"x" * 100_000, b"y" * 3_000_000):
        answer = post(balancer, session, body)
        decision = routing.route(session, peers)
        assert decision is not None
        assert answer.status == 200
        assert answer.headers["x-upstream-addr"] == decision.order[1].address
        assert answer.json["bytes"] == len(body)
    served = next(backend for backend in backends if backend.seen)
    assert served.seen[0].headers["x-backend-instance"] == decision.order[1].id
    line = balancer.logged(why="retry")
    assert (line["upstream_status"], line["retries"]) == ("502, 200", 1)
    assert ran(backends) == 3


def test_only_the_sessions_of_the_dead_backend_move(start: Start, backends: list[Backend]) -> None:
    peers = table(backends)
    balancer = start(peers)
    sessions = [f"s{number}" for number in range(60)]
    before = {session: balancer.ask(session).headers["x-upstream-addr"] for session in sessions}
    backends[2].kill()
    for session in sessions:
        answer = balancer.ask(session)
        assert answer.status == 200
        assert (answer.headers["x-upstream-addr"] == before[session]) == (before[session] != backends[2].address)


@pytest.mark.parametrize("status", [502, 503])
def test_a_backend_that_refuses_is_retried(start: Start, backends: list[Backend], status: int) -> None:
    peers = table(backends)
    balancer = start(peers)
    backends[1].behaviour.status = status
    answer = post(balancer, session_at(peers, 1))
    assert answer.status == 200
    assert answer.headers["x-upstream-addr"] != backends[1].address
    assert ran(backends) == 2


def test_an_error_of_the_engine_is_not_retried_and_reaches_the_client(start: Start, backends: list[Backend]) -> None:
    peers = table(backends)
    balancer = start(peers)
    for status in (400, 401, 404, 422, 500):
        backends[1].behaviour.status = status
        answer = post(balancer, session_at(peers, 1))
        assert answer.status == status
        assert answer.json["port"] == backends[1].port, "the engine's own words"
    assert ran(backends) == 5


def test_a_request_that_times_out_ran_exactly_once(start: Start, backends: list[Backend]) -> None:
    peers = table(backends)
    balancer = start(peers, read_timeout=1)
    for backend in backends:
        backend.behaviour.delay = 20
    answer = post(balancer, session_at(peers, 3))
    assert answer.status == 504
    assert answer.json["error"]["code"] == 504
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["x-upstream-addr"] == backends[3].address
    assert ran(backends) == 1
    eventually(lambda: sum(balancer.inflight().values()) == 0)


def test_a_backend_that_dies_at_work_is_a_502_and_the_request_is_not_run_again(
    start: Start, backends: list[Backend]
) -> None:
    peers = table(backends)
    balancer = start(peers)
    backends[0].behaviour.drop = True
    answer = post(balancer, session_at(peers, 0))
    assert answer.status == 502
    assert answer.json["error"]["type"] == "server_error"
    assert ran(backends) == 1


def test_a_dead_kept_alive_connection_is_retried_and_not_seen_by_the_client(
    start: Start, backends: list[Backend]
) -> None:
    peers = table(backends)
    balancer = start(peers, workers=1)
    session = session_at(peers, 0)
    assert post(balancer, session).status == 200
    backends[0].behaviour.drop = True
    answer = post(balancer, session)
    assert answer.status == 200
    assert answer.headers["x-upstream-addr"] != backends[0].address


def test_a_backend_at_work_for_long_that_dies_is_not_asked_again_even_over_a_kept_alive_connection(
    start: Start, backends: list[Backend]
) -> None:
    peers = table(backends)
    balancer = start(peers, workers=1)
    session = session_at(peers, 0)
    assert post(balancer, session).status == 200
    for backend in backends:
        backend.behaviour.delay = 20
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(post(balancer, session)))
    thread.start()
    eventually(lambda: balancer.inflight()["69/0"] == 1)
    timer = threading.Timer(0.4, backends[0].kill)
    timer.start()
    thread.join()
    assert answers[0].status == 502
    assert ran(backends) == 2


def test_the_same_backend_is_never_asked_twice(start: Start, backends: list[Backend]) -> None:
    peers = table(backends)[:1]
    balancer = start(peers)
    backends[0].behaviour.status = 503
    answer = post(balancer, "s")
    assert answer.status == 503
    assert answer.json["error"]["code"] == 503
    assert ran(backends) == 1
    two = table(backends)[:2]
    balancer.set_peers(two)
    backends[1].behaviour.status = 503
    assert post(balancer, "s").status == 503
    assert [len(backend.seen) for backend in backends[:2]] == [2, 1]


def test_a_stream_cut_by_its_backend_is_logged_and_counted_as_cut(start: Start, backends: list[Backend]) -> None:
    peers = table(backends)
    balancer = start(peers)
    for backend in backends:
        backend.behaviour.chunks = 4
    whole = post(balancer, "whole")
    assert b"[DONE]" in whole.body
    assert balancer.logged(sid=routing.sid("whole"))["end"] == "done"
    backends[0].behaviour.die_after_chunks = 2
    cut = post(balancer, session_at(peers, 0))
    assert cut.status == 200
    assert b"[DONE]" not in cut.body
    line = balancer.logged(end="cut")
    assert (line["status"], line["backend"]) == (200, "69/0")
    eventually(lambda: metric(balancer, 'fleet_stream_cut_total{backend="69/0"}') == 1)


def test_a_client_that_goes_away_is_no_cut(start: Start, backends: list[Backend]) -> None:
    import http.client

    balancer = start(table(backends))
    for backend in backends:
        backend.behaviour.chunks, backend.behaviour.chunk_gap = 100, 0.05
    connection = http.client.HTTPConnection("127.0.0.1", balancer.port)
    connection.request("POST", "/v1/chat/completions", body=b"{}", headers={"X-Session-ID": "gone"})
    connection.getresponse().readline()
    connection.sock.close()
    connection.close()
    assert balancer.logged(sid=routing.sid("gone"))["end"] == "client"
    eventually(lambda: sum(balancer.inflight().values()) == 0)


def metric(balancer: Balancer, name: str) -> float | None:
    for line in request(balancer.state_port, "/metrics").body.decode().splitlines():
        if line.startswith(name + " "):
            return float(line.rpartition(" ")[2])
    return None


def test_failures_in_a_row_eject_a_backend_and_an_answer_of_its_server_brings_it_back(
    start: Start, backends: list[Backend]
) -> None:
    peers = table(backends)
    balancer = start(peers)
    session = session_at(peers, 0)
    backends[0].kill()
    for _ in range(3):
        assert post(balancer, session).status == 200
    assert balancer.health_of("69/0") in ("ejected", "down")
    assert request(balancer.port, "/health").json["status"] == "degraded"
    seen = balancer.error_log().count("refused")
    assert post(balancer, session).status == 200
    assert balancer.error_log().count("refused") == seen, "it is not tried any more"
    backends[0].start()
    eventually(lambda: balancer.health_of("69/0") == "ok", 15)
    assert post(balancer, session).headers["x-upstream-addr"] == backends[0].address


def test_never_ejects_everything(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends))
    for backend in backends:
        backend.behaviour.health_status = 503
    eventually(lambda: all(row["health"] == "down" for row in balancer.state()["peers"]), 12)
    health = request(balancer.port, "/health")
    assert (health.status, health.json["status"]) == (503, "down")
    answer = post(balancer, "s")
    assert answer.status == 200
    assert balancer.logged(sid=routing.sid("s"))["why"] == "panic"


def test_probes_come_from_one_worker(start: Start, backends: list[Backend]) -> None:
    started = time.monotonic()
    start(table(backends), workers=4)
    eventually(lambda: len(backends[0].probes) >= 4)
    assert time.monotonic() - started > 2.5, "one probe a second, not one of each worker"


def test_a_frozen_backend_is_suspect_within_five_seconds_and_home_again_soon(
    start: Start, backends: list[Backend]
) -> None:
    peers = table(backends)
    balancer = start(peers)
    session = session_at(peers, 0)
    eventually(lambda: backends[0].probes)
    backends[0].behaviour.health_delay = 6
    eventually(lambda: balancer.health_of("69/0") == "suspect", 5)
    assert post(balancer, session).headers["x-upstream-addr"] != backends[0].address
    backends[0].behaviour.health_delay = 0
    eventually(lambda: balancer.health_of("69/0") == "ok", 15)
    assert post(balancer, session).headers["x-upstream-addr"] == backends[0].address


def test_a_slow_health_page_is_no_reason_while_tokens_flow(start: Start, backends: list[Backend]) -> None:
    peers = table(backends)
    balancer = start(peers)
    backends[0].behaviour.chunks, backends[0].behaviour.chunk_gap = 70, 0.1
    backends[0].behaviour.health_delay = 3
    stream = threading.Thread(target=post, args=(balancer, session_at(peers, 0)))
    stream.start()
    states = set()

    def watched() -> bool:
        states.add(balancer.health_of("69/0"))
        return not stream.is_alive()

    eventually(watched, 15, 0.2)
    assert states == {"ok"}


def test_an_engine_that_hangs_behind_a_healthy_server_is_found_by_a_token_probe(
    start: Start, backends: list[Backend]
) -> None:
    peers = table(backends)
    balancer = start(peers, read_timeout=1, patches=SHORT)
    session = session_at(peers, 1)
    backends[1].behaviour.stall_completions = True
    backends[1].behaviour.delay = 60
    assert post(balancer, session).status == 504
    eventually(lambda: balancer.health_of("69/1") == "suspect", 15)
    probe = next(seen for seen in backends[1].probes if seen.method == "POST")
    assert probe.headers["authorization"].startswith("Bearer ")
    assert post(balancer, session).status == 200
    backends[1].behaviour.stall_completions = False
    backends[1].resume.set()
    eventually(lambda: balancer.health_of("69/1") == "ok", 15)


def test_a_drained_backend_finishes_its_stream(start: Start, backends: list[Backend]) -> None:
    from dataclasses import replace

    from fleetctl.balancer.peers import PeerState

    peers = table(backends)
    balancer = start(peers)
    session = session_at(peers, 0)
    backends[0].behaviour.chunks, backends[0].behaviour.chunk_gap = 40, 0.05
    answers: list[Answer] = []
    stream = threading.Thread(target=lambda: answers.append(post(balancer, session)))
    stream.start()
    eventually(lambda: balancer.inflight()["69/0"] == 1)
    balancer.set_peers([replace(peers[0], state=PeerState.DRAIN), *peers[1:]])
    assert balancer.inflight()["69/0"] == 1
    assert post(balancer, session).headers["x-upstream-addr"] != backends[0].address
    stream.join()
    assert answers[0].body.count(b"data: {") == 40
    assert b"[DONE]" in answers[0].body
    eventually(lambda: balancer.inflight()["69/0"] == 0)


def test_each_ejection_is_twice_as_long_as_the_last_up_to_a_limit(start: Start, backends: list[Backend]) -> None:
    peers = table(backends)
    limits = "local EJECT_SECONDS = 10          -- doubled each time ...\nlocal EJECT_MAX = 120"
    short = {"lua/health.lua": (limits, "local EJECT_SECONDS = 0.4\nlocal EJECT_MAX = 1.2")}
    balancer = start(peers, patches=short, workers=1)
    session = session_at(peers, 0)
    backends[0].behaviour.drop = True

    def ejections() -> list[str]:
        return re.findall(r"peer 69/0 ejected for ([\d.]+) s: died", balancer.error_log())

    for number in range(4):

        def ejected(wanted: int = number + 1) -> bool:
            post(balancer, session)
            return len(ejections()) >= wanted

        eventually(ejected, 10, 0.05)
        eventually(lambda: balancer.health_of("69/0") == "ok", 5)
    assert ejections() == ["0.4", "0.8", "1.2", "1.2"]


def test_a_silent_host_costs_the_connect_timeout_and_the_next_in_order_answers(
    start: Start, backends: list[Backend]
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:  # nobody accepts them: the kernel drops every later SYN
            client.setblocking(False)
            client.connect_ex(silent.getsockname())
        peers = [Peer("69/9", address), *table(backends)]
        balancer = start(peers, connect_timeout=0.5)
        answer = post(balancer, session_at(peers, 0))
        for client in waiting:
            client.close()
    assert answer.status == 200
    line = balancer.logged(why="retry")
    assert (line["upstream_status"], line["retries"]) == ("504, 200", 1)
    assert line["upstream"].startswith(f"{address}, ")
    assert answer.headers["x-upstream-addr"] == line["upstream"].split(", ")[1]
    assert ran(backends) == 1


def test_a_frozen_backend_is_down_only_after_three_slow_probes(start: Start, backends: list[Backend]) -> None:
    balancer = start(table(backends), patches={"lua/probe.lua": ("SLOW_SECONDS = 10", "SLOW_SECONDS = 0.7")})
    eventually(lambda: backends[0].probes)
    backends[0].behaviour.health_delay = 30
    eventually(lambda: balancer.health_of("69/0") == "suspect", 8)
    before = len(backends[0].probes)
    eventually(lambda: balancer.health_of("69/0") == "down", 8)
    assert len(backends[0].probes) - before in (2, 3), "the first of the three may have been sent as it became suspect"
    assert "/health has not answered for" in balancer.error_log()


def test_a_token_is_asked_for_only_where_no_request_has_proved_that_the_engine_works(
    start: Start, backends: list[Backend]
) -> None:
    peers = table(backends)[:2]
    balancer = start(peers, patches={"lua/probe.lua": ("local IDLE = 300", "local IDLE = 2")})
    busy = session_at(peers, 0)

    def idle_one_was_asked() -> bool:
        post(balancer, busy)
        return any(probe.method == "POST" for probe in backends[1].probes)

    eventually(idle_one_was_asked, 10, 0.1)
    assert not any(probe.method == "POST" for probe in backends[0].probes)
    assert next(p for p in backends[1].probes if p.method == "POST").path == "/v1/completions"
