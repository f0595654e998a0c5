"""The routes of vLLM's OpenAI server: who may call them and what they answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Any

from . import VERSION, log
from .completions import ApiError, Completion, dumps, read_messages
from .faults import Faults
from .http import REASONS, HttpRequest, Reply
from .metrics import Metrics
from .scheduler import Scheduler

GUARDED = ("/v1", "/v2", "/inference")
CLIENT_GONE = 499
Route = Callable[[HttpRequest, Reply], Awaitable[None]]


class Api:
    """All routes of one engine; a callable that answers one request."""

    def __init__(
        self, flags: Namespace, keys: list[str], scheduler: Scheduler, metrics: Metrics, faults: Faults
    ) -> None:
        self.flags = flags
        self.names: list[str] = flags.served_model_name or [flags.model]
        self.scheduler = scheduler
        self.metrics = metrics
        self.faults = faults
        self.started = int(time.time())
        self.in_flight = 0
        self.origins: list[str] = flags.allowed_origins or ["*"]
        listed = flags.disable_access_log_for_endpoints or []
        self.quiet = {name for item in listed for name in item.split(",")}
        self._keys = [hashlib.sha256(key.encode()).digest() for key in keys]
        spec = sorted((flags.speculative_config or {}).items())
        parts = (flags.tensor_parallel_size, flags.max_model_len, flags.dtype, flags.quantization, spec)
        self.fingerprint = f"vllm-{VERSION}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}"
        self.routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): self.health,
            ("GET", "/ping"): self.health,
            ("GET", "/load"): self.load,
            ("GET", "/version"): self.version,
            ("GET", "/metrics"): self.prometheus,
            ("GET", "/server_info"): self.server_info,
            ("GET", "/is_paused"): self.is_paused,
            ("GET", "/v1/models"): self.models,
            ("POST", "/v1/chat/completions"): self.completions,
            ("POST", "/v1/completions"): self.completions,
            ("POST", "/invocations"): self.completions,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/detokenize"): self.detokenize,
            ("POST", "/pause"): self.pause,
            ("POST", "/resume"): self.pause,
        }
        self.paths = {path for _, path in self.routes}

    async def __call__(self, http: HttpRequest, reply: Reply) -> None:
        began = time.monotonic()
        self._add_headers(http, reply)
        try:
            await self._dispatch(http, reply)
        except ApiError as error:
            reply.send(error.status, dumps(error.body))
        except asyncio.CancelledError:
            reply.status = reply.status or CLIENT_GONE
            raise
        except Exception as error:
            log.line("ERROR", "serving.py:300", f"Error in handling {http.path}: {error!r}")
            if not reply.status:
                reply.send(500, dumps(ApiError(500, repr(error), "InternalServerError").body))
        finally:
            self._account(http, reply, time.monotonic() - began)

    def _add_headers(self, http: HttpRequest, reply: Reply) -> None:
        origin = http.headers.get("origin")
        if origin and ("*" in self.origins or origin in self.origins):
            reply.headers["access-control-allow-origin"] = "*" if "*" in self.origins else origin
        if self.flags.enable_request_id_headers:
            reply.headers["x-request-id"] = http.headers.get("x-request-id") or os.urandom(16).hex()

    async def _dispatch(self, http: HttpRequest, reply: Reply) -> None:
        if http.method == "OPTIONS":
            self._preflight(http, reply)
        elif not self._authorised(http):
            reply.send(401, b'{"error":"Unauthorized"}')
        elif route := self.routes.get((http.method, http.path)):
            await route(http, reply)
        else:
            status = 405 if http.path in self.paths else 404
            raise ApiError(status, REASONS[status], REASONS[status])

    def _authorised(self, http: HttpRequest) -> bool:
        if not self._keys or not http.path.startswith(GUARDED):
            return True
        scheme, _, token = http.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(token.encode()).digest()
        return scheme.lower() == "bearer" and any(hmac.compare_digest(given, key) for key in self._keys)

    def _preflight(self, http: HttpRequest, reply: Reply) -> None:
        if "access-control-request-method" not in http.headers or "origin" not in http.headers:
            raise ApiError(405, REASONS[405], REASONS[405])
        reply.headers["access-control-allow-methods"] = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
        reply.headers["access-control-max-age"] = "600"
        if asked := http.headers.get("access-control-request-headers"):
            reply.headers["access-control-allow-headers"] = asked
        reply.send(200, b"OK", "text/plain; charset=utf-8")

    def _account(self, http: HttpRequest, reply: Reply, seconds: float) -> None:
        if not self.flags.disable_uvicorn_access_log and http.path not in self.quiet:
            phrase = f"{reply.status} {REASONS.get(reply.status, '')}".strip()
            log.uvicorn(f'{http.client} - "{http.method} {http.target} HTTP/1.1" {phrase}')
        if http.method == "GET" and not http.path.startswith("/v1"):
            return
        see, path = self.metrics, http.path if http.path in self.paths else "none"
        see.add("http_requests_total", 1, handler=path, method=http.method, status=f"{reply.status // 100}xx")
        see.observe("http_request_size_bytes", len(http.body), handler=path)
        see.observe("http_response_size_bytes", reply.sent, handler=path)
        see.observe("http_request_duration_highr_seconds", seconds)
        see.observe("http_request_duration_seconds", seconds, handler=path, method=http.method)

    async def health(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(503 if "unhealthy" in self.faults else 200)

    async def load(self, http: HttpRequest, reply: Reply) -> None:
        tracked = self.in_flight if self.flags.enable_server_load_tracking else 0
        reply.send(200, dumps({"server_load": tracked}))

    async def version(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(200, dumps({"version": VERSION}))

    async def prometheus(self, http: HttpRequest, reply: Reply) -> None:
        text = self.metrics.render(frozen="hang" in self.faults)
        reply.send(200, text.encode(), "text/plain; version=1.0.0; charset=utf-8")

    async def server_info(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(200, dumps({"vllm_config": f"simulator {self.fingerprint} model={self.flags.model}"}))

    async def models(self, http: HttpRequest, reply: Reply) -> None:
        common = {"object": "model", "created": self.started, "owned_by": "vllm", "root": self.flags.model}
        tail = {"parent": None, "max_model_len": self.flags.max_model_len, "permission": []}
        models = [{"id": name, **common, **tail} for name in self.names]
        reply.send(200, dumps({"object": "list", "data": models}))

    async def pause(self, http: HttpRequest, reply: Reply) -> None:
        self.scheduler.paused = http.path == "/pause"
        reply.send(200, dumps({"status": "paused" if self.scheduler.paused else "resumed"}))

    async def is_paused(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(200, dumps({"is_paused": self.scheduler.paused}))

    async def tokenize(self, http: HttpRequest, reply: Reply) -> None:
        body = read_json(http)
        text = read_messages(body["messages"])[0] if "messages" in body else str(body.get("prompt") or "")
        data = text.encode(errors="replace")
        tokens = [int.from_bytes(data[start : start + 4], "big") for start in range(0, len(data), 4)]
        answer = {"count": len(tokens), "max_model_len": self.flags.max_model_len, "tokens": tokens}
        reply.send(200, dumps({**answer, "token_strs": None}))

    async def detokenize(self, http: HttpRequest, reply: Reply) -> None:
        tokens = read_json(http).get("tokens") or []
        data = b"".join(int(token).to_bytes(4, "big").lstrip(b"\0") for token in tokens)
        reply.send(200, dumps({"prompt": data.decode(errors="replace")}))

    async def completions(self, http: HttpRequest, reply: Reply) -> None:
        body = read_json(http)
        model = body.get("model") or self.names[0]
        if model not in self.names:
            raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
        chat = "messages" in body if http.path == "/invocations" else http.path == "/v1/chat/completions"
        completion = Completion(body, self.flags, chat, http.headers.get("x-request-id"))
        for sequence in completion.sequences(self.faults.words):
            self.scheduler.submit(sequence, completion.prompt)
        self.in_flight += 1
        try:
            if completion.request.stream:
                reply.start("text/event-stream; charset=utf-8")
                async for data in completion.chunks(model, self.fingerprint):
                    reply.chunk(data)
                reply.end()
            else:
                reply.send(200, await completion.whole(model, self.fingerprint))
        except asyncio.CancelledError:
            self.scheduler.abort(completion.request)
            raise
        finally:
            self.in_flight -= 1
        self._count_tools(completion)

    def _count_tools(self, completion: Completion) -> None:
        if completion.chat and self.flags.tool_call_parser:
            self.metrics.add(
                "vllm:tool_call_parser_invocations_total",
                1,
                mode="streaming" if completion.request.stream else "non_streaming",
                outcome="tool_call" if completion.called else "no_tool_call",
                request_type="chat_completions",
            )


def read_json(http: HttpRequest) -> dict[str, Any]:
    """The body as an object. Raises ApiError when it is not one."""
    try:
        body = json.loads(http.body)
    except ValueError as error:
        raise ApiError(400, f"[{{'type': 'json_invalid', 'msg': '{error}'}}]", "Bad Request") from error
    if not isinstance(body, dict):
        raise ApiError(400, "Input should be a valid dictionary or object", "Bad Request")
    return body
