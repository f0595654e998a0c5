"""The routes of vLLM's OpenAI server: who may call them, what they answer, and how it looks on the wire."""

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
from .brain import ARGUMENTS, CALL, CONTENT, REASONING, Ask, Token, choose_tool, speak, token_count
from .faults import Faults
from .http import HttpRequest, Reply
from .metrics import Metrics
from .scheduler import Request, Scheduler, Sequence

GUARDED = ("/v1", "/v2", "/inference")
IMAGE_TOKENS = 256
Route = Callable[[HttpRequest, Reply], Awaitable[None]]


class ApiError(Exception):
    """An error answer in vLLM's form."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def question_of(messages: list[Any]) -> tuple[str, str, int]:
    """The whole prompt text, the last message of the user, and the number of images."""
    texts, last, images = [], "", 0
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise ApiError(400, "1 validation error: messages: each message needs a role", "Bad Request")
        content = message.get("content") or ""
        if isinstance(content, list):
            images += sum(part.get("type") != "text" for part in content)
            content = "\n".join(part.get("text", "") for part in content if part.get("type") == "text")
        texts.append(f"<|im_start|>{message['role']}\n{content}<|im_end|>\n")
        if message["role"] == "user":
            last = content
    return "".join(texts), last, images


class Job:
    """One completion being answered: its sequences, and the words in which the answer speaks of itself."""

    def __init__(
        self, body: dict[str, Any], http: HttpRequest, chat: bool, model: str, fingerprint: str
    ) -> None:
        self.body = body
        self.chat = chat
        self.created = int(time.time())
        name = http.headers.get("x-request-id") or os.urandom(8).hex()
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{name}"
        self.model = model
        self.fingerprint = fingerprint
        self.prompt_tokens = 0
        self.reasoning_tokens = 0
        self.completion_tokens = 0
        self.request = Request(bool(body.get("stream")))
        options = body.get("stream_options") or {}
        self.include_usage = bool(options.get("include_usage"))

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def count(self, tokens: list[Token]) -> None:
        self.completion_tokens += len(tokens)
        self.reasoning_tokens += sum(kind == REASONING for kind, _ in tokens)

    def usage(self, stream: bool) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }
        if not stream:
            usage["prompt_tokens_details"] = None
        if self.chat:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage


class Api:
    """All routes of one engine."""

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
        self.routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): self.health,
            ("GET", "/ping"): self.health,
            ("POST", "/ping"): self.health,
            ("GET", "/load"): self.load,
            ("GET", "/version"): self.version,
            ("GET", "/metrics"): self.prometheus,
            ("GET", "/server_info"): self.server_info,
            ("GET", "/v1/models"): self.models,
            ("POST", "/v1/chat/completions"): self.completions,
            ("POST", "/v1/completions"): self.completions,
            ("POST", "/invocations"): self.completions,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/detokenize"): self.detokenize,
            ("POST", "/pause"): self.pause,
            ("POST", "/resume"): self.pause,
            ("GET", "/is_paused"): self.is_paused,
        }
        self.paths = {path for _, path in self.routes}
        self.quiet = {
            name for item in flags.disable_access_log_for_endpoints or [] for name in item.split(",")
        }
        self.origins: list[str] = flags.allowed_origins or ["*"]
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._thinks = bool(flags.reasoning_parser) or "qwen3" in self.names[0].lower()
        spec = flags.speculative_config or {}
        parts = (
            flags.tensor_parallel_size,
            flags.max_model_len,
            flags.dtype,
            flags.quantization,
            sorted(spec.items()),
        )
        self.fingerprint = f"vllm-{VERSION}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}"

    async def __call__(self, http: HttpRequest, reply: Reply) -> None:
        began = time.monotonic()
        origin = http.headers.get("origin")
        if origin and ("*" in self.origins or origin in self.origins):
            reply.headers["access-control-allow-origin"] = "*" if "*" in self.origins else origin
        if self.flags.enable_request_id_headers:
            reply.headers["x-request-id"] = http.headers.get("x-request-id") or os.urandom(16).hex()
        self.in_flight += http.path in ("/v1/chat/completions", "/v1/completions", "/invocations")
        try:
            await self._dispatch(http, reply)
        except ApiError as error:
            reply.send(error.status, dumps(error.body))
        finally:
            self.in_flight -= http.path in ("/v1/chat/completions", "/v1/completions", "/invocations")
            self._account(http, reply, time.monotonic() - began)

    async def _dispatch(self, http: HttpRequest, reply: Reply) -> None:
        if http.method == "OPTIONS":
            self._preflight(http, reply)
        elif not self._authorised(http):
            reply.send(401, b'{"error":"Unauthorized"}')
        elif route := self.routes.get((http.method, http.path)):
            await route(http, reply)
        elif http.path in self.paths:
            raise ApiError(405, "Method Not Allowed", "Method Not Allowed")
        else:
            raise ApiError(404, "Not Found", "Not Found")

    def _authorised(self, http: HttpRequest) -> bool:
        if not self._digests or not http.path.startswith(GUARDED):
            return True
        scheme, _, token = http.headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(token.encode("latin-1", "replace")).digest()
        return scheme.lower() == "bearer" and any([hmac.compare_digest(given, key) for key in self._digests])

    def _preflight(self, http: HttpRequest, reply: Reply) -> None:
        if "access-control-request-method" not in http.headers or "origin" not in http.headers:
            raise ApiError(405, "Method Not Allowed", "Method Not Allowed")
        reply.headers["access-control-allow-methods"] = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
        reply.headers["access-control-max-age"] = "600"
        asked = http.headers.get("access-control-request-headers")
        if asked:
            reply.headers["access-control-allow-headers"] = asked
        reply.send(200, b"OK", "text/plain; charset=utf-8")

    def _account(self, http: HttpRequest, reply: Reply, seconds: float) -> None:
        path = http.path if http.path in self.paths else "none"
        if not self.flags.disable_uvicorn_access_log and http.path not in self.quiet:
            log.uvicorn(f'{http.client} - "{http.method} {http.target} HTTP/1.1" {reply.status}')
        if path in ("/metrics", "/health", "/load", "/ping", "/version", "/server_info"):
            return
        see = self.metrics
        see.add("http_requests_total", 1, handler=path, method=http.method, status=f"{reply.status // 100}xx")
        see.observe("http_request_size_bytes", len(http.body), handler=path)
        see.observe("http_response_size_bytes", reply.sent, handler=path)
        see.observe("http_request_duration_highr_seconds", seconds)
        see.observe("http_request_duration_seconds", seconds, handler=path, method=http.method)

    async def health(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(503 if "unhealthy" in self.faults else 200)

    async def load(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(
            200, dumps({"server_load": self.in_flight if self.flags.enable_server_load_tracking else 0})
        )

    async def version(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(200, dumps({"version": VERSION}))

    async def prometheus(self, http: HttpRequest, reply: Reply) -> None:
        text = self.metrics.render(frozen="hang" in self.faults)
        reply.send(200, text.encode(), "text/plain; version=1.0.0; charset=utf-8")

    async def server_info(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(200, dumps({"vllm_config": f"simulator {self.fingerprint} model={self.flags.model}"}))

    async def models(self, http: HttpRequest, reply: Reply) -> None:
        models = [
            {
                "id": name,
                "object": "model",
                "created": self.started,
                "owned_by": "vllm",
                "root": self.flags.model,
                "parent": None,
                "max_model_len": self.flags.max_model_len,
                "permission": [],
            }
            for name in self.names
        ]
        reply.send(200, dumps({"object": "list", "data": models}))

    async def pause(self, http: HttpRequest, reply: Reply) -> None:
        self.scheduler.paused = http.path == "/pause"
        reply.send(200, dumps({"status": "paused" if self.scheduler.paused else "resumed"}))

    async def is_paused(self, http: HttpRequest, reply: Reply) -> None:
        reply.send(200, dumps({"is_paused": self.scheduler.paused}))

    async def tokenize(self, http: HttpRequest, reply: Reply) -> None:
        body = self._json(http)
        text = question_of(body["messages"])[0] if body.get("messages") else str(body.get("prompt") or "")
        data = text.encode()
        tokens = [int.from_bytes(data[start : start + 4], "big") for start in range(0, len(data), 4)]
        answer = {"count": len(tokens), "max_model_len": self.flags.max_model_len, "tokens": tokens}
        reply.send(200, dumps({**answer, "token_strs": None}))

    async def detokenize(self, http: HttpRequest, reply: Reply) -> None:
        tokens = self._json(http).get("tokens") or []
        data = b"".join(int(token).to_bytes(4, "big").lstrip(b"\0") for token in tokens)
        reply.send(200, dumps({"prompt": data.decode(errors="replace")}))

    def _json(self, http: HttpRequest) -> dict[str, Any]:
        try:
            body = json.loads(http.body)
        except ValueError as error:
            raise ApiError(
                400, f"[{{'type': 'json_invalid', 'msg': 'JSON decode error: {error}'}}]", "Bad Request"
            ) from error
        if not isinstance(body, dict):
            raise ApiError(400, "Input should be a valid dictionary or object", "Bad Request")
        return body

    def _number(self, body: dict[str, Any], name: str, default: Any, low: float, high: float) -> Any:
        value = body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ApiError(400, f"{name} must be in [{low}, {high}], got {value}.", "BadRequestError", name)
        return value

    def _prepare(self, http: HttpRequest) -> Job:
        """Reads a completion request and submits its sequences. Raises ApiError for what vLLM refuses."""
        body = self._json(http)
        chat = "messages" in body if http.path == "/invocations" else http.path == "/v1/chat/completions"
        model = body.get("model") or self.names[0]
        if model not in self.names:
            raise ApiError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
        job = Job(body, http, chat, model, self.fingerprint)
        if self.flags.enable_force_include_usage:
            job.include_usage = True
        if chat:
            if not body.get("messages"):
                raise ApiError(400, "1 validation error: messages: Field required", "Bad Request")
            prompt, question, images = question_of(body["messages"])
            prompt += "<|im_start|>assistant\n"
            kwargs = {
                **(self.flags.default_chat_template_kwargs or {}),
                **(body.get("chat_template_kwargs") or {}),
            }
            think = self._thinks and kwargs.get("enable_thinking", True)
        else:
            raw = body.get("prompt")
            if raw is None:
                raise ApiError(400, "1 validation error: prompt: Field required", "Bad Request")
            prompt = question = raw if isinstance(raw, str) else " ".join(map(str, raw))
            images, think = 0, False
        if body.get("tools"):
            prompt += json.dumps(body["tools"])
        job.prompt_tokens = token_count(prompt) + IMAGE_TOKENS * images
        limit = self._limit(body, job.prompt_tokens, chat)
        temperature = float(self._number(body, "temperature", 1.0, 0, 2))
        count = int(self._number(body, "n", 1, 1, 128))
        stop = body.get("stop") or []
        schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
        if (body.get("response_format") or {}).get("type") == "json_object":
            schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
        tool = self._tool(body, question) if chat else None
        for index in range(count):
            ask = Ask(
                prompt,
                question,
                temperature,
                body.get("seed"),
                think,
                bool(self.flags.reasoning_parser),
                schema,
                tool,
                index,
                self.faults.words,
            )
            sequence = Sequence(job.request, index, job.prompt_tokens, limit, speak(ask))
            sequence.minimum = int(self._number(body, "min_tokens", 0, 0, limit))
            sequence.ignore_eos = bool(body.get("ignore_eos"))
            sequence.stop = (stop,) if isinstance(stop, str) else tuple(stop)
            job.request.sequences.append(sequence)
        for sequence in job.request.sequences:
            self.scheduler.submit(sequence, prompt)
        return job

    def _limit(self, body: dict[str, Any], prompt: int, chat: bool) -> int:
        """How many tokens a reply may have at most: what was asked, or what the context leaves."""
        longest = self.flags.max_model_len
        asked = body.get("max_completion_tokens") if chat else None
        asked = body.get("max_tokens") if asked is None else asked
        if asked is None:
            asked = longest - prompt if chat else 16
        if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
            raise ApiError(400, f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
        if prompt + asked > longest or prompt >= longest:
            raise ApiError(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested {max(asked, 0)} output "
                f"tokens and your prompt contains {prompt} input tokens, for a total of {prompt + max(asked, 0)} "
                "tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
                param="input_tokens",
            )
        return int(asked)

    def _tool(self, body: dict[str, Any], question: str) -> dict[str, Any] | None:
        tools, choice = body.get("tools") or [], body.get("tool_choice") or "auto"
        if (
            tools
            and choice == "auto"
            and not (self.flags.enable_auto_tool_choice and self.flags.tool_call_parser)
        ):
            raise ApiError(
                400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            )
        return choose_tool(tools, choice, question)

    async def completions(self, http: HttpRequest, reply: Reply) -> None:
        job = self._prepare(http)
        try:
            if job.request.stream:
                await self._stream(job, reply)
            else:
                await self._whole(job, reply)
        except asyncio.CancelledError:
            reply.status = reply.status or 499
            self.scheduler.abort(job.request)
            raise

    async def _whole(self, job: Job, reply: Reply) -> None:
        said: list[list[Token]] = [[] for _ in job.request.sequences]
        for index, tokens, _ in await job.request.wait():
            said[index] += tokens
            job.count(tokens)
        choices = []
        for index, tokens in enumerate(said):
            finish = job.request.sequences[index].finish
            text = "".join(text for kind, text in tokens if kind == CONTENT)
            if not job.chat:
                choices.append(
                    {
                        "index": index,
                        "text": text,
                        "logprobs": None,
                        "finish_reason": finish,
                        "stop_reason": None,
                    }
                )
                continue
            calls = _calls(tokens)
            message = {
                "role": "assistant",
                "content": text or None,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
            }
            if calls:
                message["tool_calls"] = calls
            message["reasoning"] = "".join(text for kind, text in tokens if kind == REASONING) or None
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": "tool_calls" if calls and finish == "stop" else finish,
                    "stop_reason": None,
                    "token_ids": None,
                    "routed_experts": None,
                }
            )
        self._count_tools(job, "non_streaming", any(kind == CALL for tokens in said for kind, _ in tokens))
        answer = {
            **job.head("chat.completion" if job.chat else "text_completion"),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": job.fingerprint,
            "usage": job.usage(stream=False),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
        reply.send(200, dumps(answer))

    def _count_tools(self, job: Job, mode: str, called: bool) -> None:
        if job.chat and self.flags.tool_call_parser:
            self.metrics.add(
                "vllm:tool_call_parser_invocations_total",
                1,
                mode=mode,
                outcome="tool_call" if called else "no_tool_call",
                request_type="chat_completions",
            )

    async def _stream(self, job: Job, reply: Reply) -> None:
        kind = "chat.completion.chunk" if job.chat else "text_completion"
        head = job.head(kind)
        reply.start("text/event-stream; charset=utf-8")
        opened = not job.chat
        left, called = len(job.request.sequences), False
        while left:
            events: list[dict[str, Any]] = []
            for index, tokens, finish in await job.request.wait():
                if not opened:
                    opened = True
                    for number in range(len(job.request.sequences)):
                        choice = _choice(number, {"delta": {"role": "assistant", "content": ""}}, None)
                        events.append({"choices": [choice], "prompt_token_ids": None, "prompt_text": None})
                job.count(tokens)
                called = called or any(kind == CALL for kind, _ in tokens)
                events += [{"choices": [choice]} for choice in _deltas(job, index, tokens, finish, called)]
                left -= finish is not None
            reply.chunk(b"".join(b"data: " + dumps({**head, **event}) + b"\n\n" for event in events))
        self._count_tools(job, "streaming", called)
        tail = b""
        if job.include_usage:
            last = {
                **head,
                "choices": [],
                "usage": job.usage(stream=True),
                "system_fingerprint": job.fingerprint,
            }
            tail = b"data: " + dumps(last) + b"\n\n"
        reply.chunk(tail + b"data: [DONE]\n\n")
        reply.end()


def _choice(index: int, what: dict[str, Any], finish: str | None) -> dict[str, Any]:
    choice = {"index": index, **what, "logprobs": None, "finish_reason": finish}
    if finish:
        choice["stop_reason"] = None
    return choice


def _deltas(
    job: Job, index: int, tokens: list[Token], finish: str | None, called: bool
) -> list[dict[str, Any]]:
    """The chunks of one step: one a kind of text, as the reasoning parser cuts them, the last with the reason."""
    if finish == "stop" and called:
        finish = "tool_calls"
    whats: list[dict[str, Any]] = []
    if not job.chat:
        whats.append({"text": "".join(text for _, text in tokens)})
    for kind in (REASONING, CONTENT) if job.chat else ():
        text = "".join(text for name, text in tokens if name == kind)
        if text:
            whats.append({"delta": {kind: text}})
    for kind, text in tokens if job.chat else ():
        if kind == CALL:
            whats.append({"delta": {"tool_calls": [{"index": 0, **_call(text)}]}})
        elif kind == ARGUMENTS:
            whats.append({"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}})
    if not whats:
        if not finish:
            return []
        whats.append({"delta": {"content": ""}})
    choices = [_choice(index, what, finish if what is whats[-1] else None) for what in whats]
    for choice in choices:
        choice["token_ids"] = None
    return choices


def _call(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": ""}
    return {"id": f"chatcmpl-tool-{os.urandom(8).hex()}", "type": "function", "function": function}


def _calls(tokens: list[Token]) -> list[dict[str, Any]]:
    """Tool calls of a whole reply; a call cut off by max_tokens keeps the arguments it got."""
    calls: list[dict[str, Any]] = []
    for kind, text in tokens:
        if kind == CALL:
            calls.append(_call(text))
        elif kind == ARGUMENTS:
            calls[-1]["function"]["arguments"] += text
    return calls
