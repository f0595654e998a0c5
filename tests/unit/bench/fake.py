"""An OpenAI-style server in this process, on loopback, that does as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from aiohttp import web

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer
from fleetctl.bench import load as engine
from fleetctl.bench.load import Load
from fleetctl.bench.perform import perform
from fleetctl.bench.samples import Backend, Header, Run
from fleetctl.bench.scenarios import parameters
from fleetctl.bench.target import Target
from fleetctl.fleet.schema import Affinity
from fleetctl.fleet.secrets import Secret

MODEL = "a-model"
KEY = "sk-fake-0123456789abcdef"


@dataclass
class Fake:
    """`fault`: what is wrong now; `when` says for which requests (all by default). Times in seconds."""

    backends: int = 4
    role_after: float = 0.0
    first_after: float = 0.01
    every: float = 0.001
    thinking: int = 2
    per_chunk: int = 2
    fault: str = ""
    when: Callable[[dict[str, Any], str], bool] = lambda body, session: True
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    port: int = 0
    dead: set[str] = field(default_factory=set)

    @property
    def peers(self) -> tuple[Peer, ...]:
        return tuple(
            Peer(f"{69 - n // 4}/{n % 4}", f"10.0.0.{69 - n // 4}:{8000 + n % 4}") for n in range(self.backends)
        )

    def home(self, session: str) -> str:
        return routing.order(session, self.peers, Affinity.MD5_MOD)[0].address

    def answers(self, session: str) -> str:
        """Like the balancer: the first in order that is alive."""
        order = routing.order(session, self.peers, Affinity.MD5_MOD)
        return next(peer.address for peer in order if peer.address not in self.dead)

    def target(self, **changes: Any) -> Target:
        known: dict[str, Any] = {
            "url": f"http://127.0.0.1:{self.port}",
            "key": Secret(KEY),
            "model": MODEL,
            "backends": tuple(Backend(peer.id, peer.address) for peer in self.peers),
            "home": self.home,
            "longest": 262_144,
        }
        return Target(**{**known, **changes})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        session = request.headers.get("X-Session-ID", "")
        self.asked.append((session, body))
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            fault = self.fault if self.when(body, session) else ""
            return await self._answer(request, body, session, fault)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any], session: str, fault: str) -> web.StreamResponse:
        headers = {"X-Upstream-Addr": self.answers(session), "X-Request-Id": f"lb-{len(self.asked)}"}
        if fault in PLAIN:
            status, text, kind = PLAIN[fault]
            return web.Response(status=status, text=text, content_type=kind, headers=headers)
        if fault == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault == "hang":
            await asyncio.sleep(60)
        if fault == "moved":
            return web.Response(status=308, headers={**headers, "Location": "/v1/chat/completions"})
        if not body["stream"]:
            return self._whole(body, headers)
        return await self._stream(request, body, headers, fault)

    def _whole(self, body: dict[str, Any], headers: dict[str, str]) -> web.Response:
        message = {"role": "assistant", "content": "word " * body["max_tokens"]}
        document = {
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
            "usage": self._usage(body),
        }
        return web.json_response(document, headers=headers)

    def _usage(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, reply = len(body["messages"][0]["content"]) // 4, body["max_tokens"]
        details = {"reasoning_tokens": min(self.thinking * self.per_chunk, reply)}
        return {
            "prompt_tokens": prompt,
            "completion_tokens": reply,
            "total_tokens": prompt + reply,
            "completion_tokens_details": details,
        }

    async def _stream(
        self, request: web.Request, body: dict[str, Any], headers: dict[str, str], fault: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8"})
        model = "another-model" if fault == "model" else MODEL

        async def say(choices: list[Any], **more: Any) -> None:
            event = {"object": "chat.completion.chunk", "model": model, "choices": choices, **more}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        await asyncio.sleep(self.role_after)
        await response.prepare(request)
        await say([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        await asyncio.sleep(self.first_after)
        chunks = max(1, body["max_tokens"] // self.per_chunk)
        for number in range(chunks):
            if number:
                await asyncio.sleep(self.every)
            if number == chunks // 2 and fault and await self._in_the_middle(request, response, fault):
                return response
            kind = "reasoning" if number < self.thinking else "content"
            finish = "length" if number == chunks - 1 else None
            await say([{"index": 0, "delta": {kind: "word " * self.per_chunk}, "finish_reason": finish}])
        if fault != "usage":
            await say([], usage=self._usage(body))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _in_the_middle(self, request: web.Request, response: web.StreamResponse, fault: str) -> bool:
        """What goes wrong within a stream; True when it ends there."""
        if fault == "endless":
            while True:
                await response.write(b": still here\n\n")
                await asyncio.sleep(0.02)
        if fault == "babble":
            while True:
                await response.write(b'data: {"choices": [{"delta": {"content": "word "}}]}\n\n')
                await asyncio.sleep(0.001)
        if fault == "silent":
            await asyncio.sleep(60)
        if fault == "json":
            await response.write(b'data: {"choices": [\n\n')
        if fault == "shape":
            await response.write(b'data: {"choices": [7]}\n\n')
        if fault == "error":
            await response.write(b'data: {"error": {"message": "EngineDeadError"}}\n\n')
        if fault == "cut":
            assert request.transport is not None
            request.transport.abort()
            return True
        if fault == "short":
            await response.write_eof()
            return True
        return False


PLAIN = {
    "500": (500, '{"error": "boom"}', "application/json"),
    "401": (401, f'{{"error": "no such key {KEY}"}}', "application/json"),
    "empty": (200, "", "text/event-stream"),
    "html": (200, "<html>Welcome to nginx</html>", "text/html"),
}


@asynccontextmanager
async def serving(fake: Fake) -> AsyncIterator[Fake]:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", fake.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.port = runner.addresses[0][1]
    try:
        yield fake
    finally:
        await runner.cleanup()


def performed(fake: Fake, scenario: Any, path: Path, **options: Any) -> Run:
    """A whole run against it, from header to last line, from a thread of its own for the server."""
    ready: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()

    async def serve() -> None:
        over = asyncio.Event()
        async with serving(fake):
            ready.put((asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, over = ready.get()
    try:
        target = fake.target(**options.pop("changes", {}))
        settled = scenario.settled(target)
        known = {"affinity": "md5-mod", "backends": list(target.backends), **options.pop("header", {})}
        header = Header(settled.name, 1, parameters(settled), MODEL, target.url, **known)
        return perform(settled, target, header, path, **options)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def loaded(fake: Fake, work: Callable[[Load], Awaitable[Any]], **options: Any) -> Load:
    """Serve, run `work` with a client, end both; the client, with its samples."""
    changes = options.pop("changes", {})

    async def go() -> Load:
        async with serving(fake), Load(fake.target(**changes), **options) as load:
            await work(load)
            return load

    return engine.run(go, lambda: None)
