"""What users see while backends die, freeze, join and drain."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from client import Answer, Client, get, once
from contenders import OTHER_CORE, Contender, Running, spawn, wait_for

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.balancer.peers import render as render_peers
from fleetctl.balancer.peers import version as peers_version
from fleetctl.fleet.schema import Affinity

SESSIONS = [f"user-{number}" for number in range(300)]


class Backends:
    """Sixteen processes, one each backend, ended by pid."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.folder, self.ports = folder, ports
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for port in ports:
            self.start(port)
        for port in ports:
            wait_for(port)

    def start(self, port: int) -> None:
        words = [sys.executable, str(Path(__file__).parent / "backend.py"), str(port)]
        self.processes[port] = spawn(words, OTHER_CORE, self.folder / "backends.log")

    def kill(self, port: int) -> None:
        self.processes[port].kill()
        self.processes[port].wait()

    def signal(self, port: int, number: signal.Signals) -> None:
        self.processes[port].send_signal(number)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    async def began(self) -> int:
        answers = await asyncio.gather(*(get(port, "/stats") for port in self.ports))
        return sum(json.loads(answer)["began"] for answer in answers)


def port_of(answer: Answer) -> int:
    found = re.search(rb'"content":"(\d+)"', answer.body)
    return int(found[1]) if found else 0


async def homes(port: int, sessions: list[str], limit: int = 16, seconds: float = 10) -> dict[str, int]:
    """The backend that answers each session; 0 for an error."""
    gate = asyncio.Semaphore(limit)

    async def one(session: str) -> int:
        async with gate:
            try:
                return port_of(await asyncio.wait_for(once(port, session), seconds))
            except asyncio.TimeoutError:
                return 0

    return dict(zip(sessions, await asyncio.gather(*map(one, sessions)), strict=True))


async def until(true: Callable[[], Awaitable[bool]], seconds: float) -> float:
    """Seconds until it is true; infinity when it does not become so."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        if await true():
            return time.monotonic() - started
        await asyncio.sleep(0.1)
    return float("inf")


async def inflight(running: Running) -> dict[str, int]:
    return dict(json.loads(await get(running.state_port, "/inflight")))


@dataclass
class Kill:
    held: int | None
    """requests in flight on the two dead backends by the balancer's gauge"""
    refused: int
    """of the long requests: those that ended in a JSON 502"""
    cut: int
    """of the long streams: those that ended before their end, as HTTP shows it"""
    counted: int | None
    """streams that the balancer counted as cut"""
    odd: int
    """of the long requests: those that ended in any other way but whole"""
    late_errors: int
    """of requests sent after the kill: errors"""
    sent: int
    moved: float
    wrong: int
    """sessions that moved though their home lives"""
    back: float
    """share of sessions at home again 15 s after the two came back"""


async def kill_two(contender: Contender, running: Running, backends: Backends) -> Kill:
    before = await homes(running.port, SESSIONS)
    dead = contender.backends[2:4]
    kinds: list[dict[str, str]] = [{"X_Delay_Ms": "4000"}, {"X_Chunks": "80", "X_Gap_Ms": "50"}]
    long = [
        asyncio.create_task(once(running.port, session, **kinds[number % 2]))
        for number, session in enumerate(SESSIONS[:64])
    ]
    await asyncio.sleep(1.5)
    held = None
    if running.state_port and contender.name.startswith("fleetctl"):
        gauge = await inflight(running)
        ids = {peer.address: peer.id for peer in contender.table()}
        held = sum(gauge[ids[f"127.0.0.1:{port}"]] for port in dead)
    for port in dead:
        backends.kill(port)
    late: list[Answer] = []
    ends = time.monotonic() + 6

    async def user(number: int) -> None:
        client, turn = Client(running.port), number
        while time.monotonic() < ends:
            late.append(await client.ask(SESSIONS[turn % len(SESSIONS)], X_Delay_Ms="20"))
            turn += 24
        client.close()

    await asyncio.gather(*(user(number) for number in range(24)))
    ends_of = Counter(map(how_it_ended, await asyncio.gather(*long)))
    counted = await cuts(running) if held is not None else None
    after = await homes(running.port, SESSIONS)
    moved = [session for session in SESSIONS if after[session] != before[session]]
    for port in dead:
        backends.start(port)
    await asyncio.sleep(15)
    again = await homes(running.port, SESSIONS)
    return Kill(
        held,
        ends_of["502"],
        ends_of["cut"],
        counted,
        ends_of["odd"],
        sum(answer.status != 200 for answer in late),
        len(late),
        len(moved) / len(SESSIONS),
        sum(before[session] not in dead for session in moved),
        sum(again[session] == before[session] for session in SESSIONS) / len(SESSIONS),
    )


def how_it_ended(answer: Answer) -> str:
    """whole, 502 (with an error in JSON), cut, or odd."""
    if answer.status == 200:
        streamed = "text/event-stream" in answer.headers.get("content-type", "")
        whole = answer.whole and (not streamed or b"[DONE]" in answer.body)
        return "whole" if whole else "odd" if answer.whole else "cut"
    try:
        return "502" if answer.status == 502 and json.loads(answer.body)["error"]["code"] == 502 else "odd"
    except (ValueError, KeyError, TypeError):
        return "odd"


async def cuts(running: Running) -> int:
    """fleet_stream_cut_total over all backends."""
    page = (await get(running.state_port, "/metrics")).decode()
    return sum(int(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith("fleet_stream_cut_total{"))


@dataclass
class Frozen:
    early: int
    """failed requests of the first 5 s"""
    later: int
    """failed requests after that"""
    sent_later: int
    home: float
    """seconds from SIGCONT to the first answer from home"""


async def freeze(contender: Contender, running: Running, backends: Backends) -> Frozen:
    before = await homes(running.port, SESSIONS)
    frozen = contender.backends[5]
    sessions = [session for session in SESSIONS if before[session] == frozen] or SESSIONS[:8]
    started = time.monotonic()
    backends.signal(frozen, signal.SIGSTOP)
    early, later, sent = 0, 0, 0
    waiting: list[asyncio.Task[tuple[float, bool]]] = []

    async def one(session: str, at: float) -> tuple[float, bool]:
        try:
            answer = await asyncio.wait_for(once(running.port, session), 3)
        except asyncio.TimeoutError:
            return at, False
        return at, answer.status == 200

    number = 0
    while (at := time.monotonic() - started) < 12:
        waiting.append(asyncio.create_task(one(sessions[number % len(sessions)], at)))
        number += 1
        await asyncio.sleep(0.1)
    for at, ok in await asyncio.gather(*waiting):
        if at < 5:
            early += not ok
        else:
            later += not ok
            sent += 1
    backends.signal(frozen, signal.SIGCONT)

    async def home() -> bool:
        try:
            return port_of(await asyncio.wait_for(once(running.port, sessions[0]), 3)) == frozen
        except asyncio.TimeoutError:
            return False

    return Frozen(early, later, sent, await until(home, 30))


async def slow_health(contender: Contender, running: Running) -> float:
    """Share of its sessions that a backend keeps while /health takes 8 s and tokens flow (20 s watched)."""
    before = await homes(running.port, SESSIONS)
    slow = contender.backends[6]
    sessions = [session for session in SESSIONS if before[session] == slow]
    stream = asyncio.create_task(once(running.port, sessions[0], X_Chunks="200", X_Gap_Ms="100"))
    await asyncio.sleep(0.5)
    await get(slow, "/health", "PUT", X_Health_Ms="8000")
    kept, asked = 0, 0
    while not stream.done():
        for session in sessions[1:6]:
            asked += 1
            kept += port_of(await once(running.port, session)) == slow
        await asyncio.sleep(0.5)
    await get(slow, "/health", "PUT", X_Health_Ms="0")
    await until(lambda: _all_well(running), 15)
    return kept / max(1, asked)


async def _all_well(running: Running) -> bool:
    document = json.loads(await get(running.state_port, "/state"))
    return all(peer["health"] == "ok" for peer in document["peers"])


@dataclass
class Changes:
    posts: int
    lost: int
    streams: int
    cut: int


async def membership(contender: Contender, running: Running) -> Changes:
    """Twenty changes (12 to 16 backends and back) under 24 kept-alive clients and 12 streams."""
    done = False
    answers: list[Answer] = []

    async def user(number: int) -> None:
        client, turn = Client(running.port), number
        while not done:
            answers.append(await client.ask(SESSIONS[turn % len(SESSIONS)]))
            turn += 24
        client.close()

    users = [asyncio.create_task(user(number)) for number in range(24)]
    streams = [asyncio.create_task(once(running.port, f"stream-{n}", X_Chunks="250", X_Gap_Ms="80")) for n in range(12)]
    for change in range(20):
        await asyncio.sleep(0.6)
        count = 12 if change % 2 == 0 else 16
        await change_to(contender, running, count)
    whole = await asyncio.gather(*streams)
    done = True
    await asyncio.gather(*users)
    cut = sum(not (answer.whole and b"[DONE]" in answer.body) for answer in whole)
    return Changes(len(answers), sum(answer.status != 200 for answer in answers), len(whole), cut)


async def change_to(contender: Contender, running: Running, count: int) -> None:
    table = [
        replace(peer, state=PeerState.UP if n < count else PeerState.DRAIN) for n, peer in enumerate(contender.table())
    ]
    if contender.name.startswith("fleetctl"):
        await load(contender, running, table)
        return
    # The others read their backends from their configuration: the same text, loaded anew.
    path = contender.folder / "nginx.conf"
    path.write_text(path.read_text())
    os.kill(running.process.pid, signal.SIGHUP)


async def load(contender: Contender, running: Running, table: list[Peer]) -> None:
    contender.write_peers(table)
    wanted = peers_version(render_peers(table))

    async def loaded() -> bool:
        return bool(json.loads(await get(running.state_port, "/state"))["version"] == wanted)

    await until(loaded, 5)


async def drain(contender: Contender, running: Running) -> tuple[bool, bool]:
    """Whether a drained backend's stream ends whole, and whether its session was elsewhere meanwhile."""
    before = await homes(running.port, SESSIONS[:1])
    home = before[SESSIONS[0]]
    stream = asyncio.create_task(once(running.port, SESSIONS[0], X_Chunks="60", X_Gap_Ms="50"))
    await asyncio.sleep(0.5)
    table = [
        replace(peer, state=PeerState.DRAIN) if peer.address.endswith(f":{home}") else peer
        for peer in contender.table()
    ]
    await load(contender, running, table)
    moved = port_of(await once(running.port, SESSIONS[0])) != home
    answer = await stream
    await load(contender, running, contender.table())
    return answer.whole and answer.body.count(b"data: ") == 61, moved


async def times_out(running: Running, backends: Backends) -> tuple[int, int]:
    """Status and number of executions of a request that takes longer than the balancer waits."""
    before = await backends.began()
    answer = await once(running.port, "slow", X_Delay_Ms="6000")
    await asyncio.sleep(0.5)
    return answer.status, await backends.began() - before


async def mapping(contender: Contender, running: Running, affinity: Affinity, count: int) -> tuple[int, float]:
    """Sessions that Python, Lua and X-Upstream-Addr do not place alike; chi-square of the mapping."""
    from urllib.parse import quote

    keys = [f"session-{number}" for number in range(count)]
    body = "".join(quote(key) + "\n" for key in keys).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.state_port)
    writer.write(b"POST /route HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    raw = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    lua = [row["address"] for row in json.loads(raw)]
    table = contender.table()
    python = [routing.order(key, table, affinity)[0].address for key in keys]
    asked = await answered_by(running.port, keys)
    wrong = sum(not a == b == c for a, b, c in zip(lua, python, asked, strict=True))
    mean = count / len(table)
    return wrong, sum((found - mean) ** 2 / mean for found in Counter(lua).values())


async def answered_by(port: int, keys: list[str]) -> list[str]:
    """X-Upstream-Addr of one request for each session, over eight kept-alive connections."""
    found = [""] * len(keys)

    async def user(first: int) -> None:
        client = Client(port)
        for number in range(first, len(keys), 8):
            found[number] = (await client.ask(keys[number])).backend
        client.close()

    await asyncio.gather(*map(user, range(8)))
    return found
