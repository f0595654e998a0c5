"""/v1/chat/completions and /v1/completions: what a request asks, and the answer in the capture's layout."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from .brain import ARGUMENTS, CALL, CONTENT, REASONING, Ask, Token, choose_tool, speak, token_count
from .scheduler import Request, Sequence

IMAGE_TOKENS = 256
NULLS_OF_MESSAGE = dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
NULLS_OF_ANSWER = dict.fromkeys(
    (
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    )
)


class ApiError(Exception):
    """An error answer in vLLM's form."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def event(value: Any) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"


def number(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    """A numeric field. Raises ApiError when it is not a number from low to high."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ApiError(400, f"{name} must be in [{low}, {high}], got {value}.", param=name)
    return value


def read_messages(messages: Any) -> tuple[str, str, int]:
    """The prompt, the last thing the user said, and the number of images. Raises ApiError."""
    if not messages or not isinstance(messages, list):
        raise ApiError(400, "1 validation error: messages: Field required", "Bad Request")
    texts, last, images = [], "", 0
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise ApiError(400, "1 validation error: messages: role: Field required", "Bad Request")
        content = message.get("content") or ""
        if isinstance(content, list):
            images += sum(part.get("type") != "text" for part in content)
            content = "\n".join(part.get("text", "") for part in content if part.get("type") == "text")
        texts.append(f"<|im_start|>{message['role']}\n{content}<|im_end|>\n")
        last = content if message["role"] == "user" else last
    return "".join(texts) + "<|im_start|>assistant\n", last, images


def reply_limit(body: dict[str, Any], prompt: int, longest: int, chat: bool) -> int:
    """How many tokens a reply may have: what was asked, else what the context leaves. Raises ApiError."""
    asked = body.get("max_completion_tokens") if chat else None
    asked = body.get("max_tokens") if asked is None else asked
    if asked is None:
        asked = max(1, longest - prompt) if chat else 16
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
    if prompt + asked > longest:
        message = (
            f"This model's maximum context length is {longest} tokens. However, you requested {asked} output "
            f"tokens and your prompt contains {prompt} input tokens, for a total of {prompt + asked} tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens."
        )
        raise ApiError(400, message, param="input_tokens")
    return asked


def wanted_schema(body: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema of response_format, a simple one for json_object, None for free text."""
    form = body.get("response_format") or {}
    if form.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}}
    schema: dict[str, Any] | None = (form.get("json_schema") or {}).get("schema")
    return schema


class Completion:
    """One request from its body to the bytes of its answer. Raises ApiError for what vLLM refuses."""

    def __init__(self, body: dict[str, Any], flags: Namespace, chat: bool, name: str | None) -> None:
        self.body = body
        self.flags = flags
        self.chat = chat
        self.request = Request(bool(body.get("stream")))
        self.reasoning_tokens = self.completion_tokens = 0
        self.called = False
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{name or os.urandom(8).hex()}"
        self.created = int(time.time())
        self.prompt, self.question, images = self._read()
        self.prompt_tokens = token_count(self.prompt) + IMAGE_TOKENS * images
        options = body.get("stream_options") or {}
        self.include_usage = bool(options.get("include_usage")) or flags.enable_force_include_usage

    def _read(self) -> tuple[str, str, int]:
        if self.chat:
            prompt, question, images = read_messages(self.body.get("messages"))
            tools = self.body.get("tools")
            return (prompt + json.dumps(tools) if tools else prompt), question, images
        raw = self.body.get("prompt")
        if raw is None:
            raise ApiError(400, "1 validation error: prompt: Field required", "Bad Request")
        text = raw if isinstance(raw, str) else " ".join(map(str, raw))
        return text, text, 0

    def sequences(self, faults: frozenset[str]) -> list[Sequence]:
        """The replies to make, `n` of them."""
        body, flags = self.body, self.flags
        limit = reply_limit(body, self.prompt_tokens, flags.max_model_len, self.chat)
        defaults = flags.default_chat_template_kwargs or {}
        template = {**defaults, **(body.get("chat_template_kwargs") or {})}
        stop = body.get("stop") or ()
        ask = Ask(
            self.prompt,
            self.question,
            temperature=float(number(body, "temperature", 1.0, 0, 2)),
            seed=body.get("seed"),
            think=self.chat and bool(template.get("enable_thinking", True)),
            split_reasoning=bool(flags.reasoning_parser),
            schema=wanted_schema(body),
            tool=self._tool() if self.chat else None,
            faults=faults,
        )
        for index in range(int(number(body, "n", 1, 1, 128))):
            sequence = Sequence(self.request, index, self.prompt_tokens, limit, speak(ask, index))
            sequence.minimum = int(number(body, "min_tokens", 0, 0, limit))
            sequence.ignore_eos = bool(body.get("ignore_eos"))
            sequence.stop = (stop,) if isinstance(stop, str) else tuple(stop)
            self.request.sequences.append(sequence)
        return self.request.sequences

    def _tool(self) -> dict[str, Any] | None:
        tools, choice = self.body.get("tools") or [], self.body.get("tool_choice") or "auto"
        allowed = self.flags.enable_auto_tool_choice and self.flags.tool_call_parser
        if tools and choice == "auto" and not allowed:
            need = "requires --enable-auto-tool-choice and --tool-call-parser to be set"
            raise ApiError(400, f'"auto" tool choice {need}')
        return choose_tool(tools, choice, self.question)

    def _count(self, tokens: list[Token]) -> None:
        self.completion_tokens += len(tokens)
        self.reasoning_tokens += sum(kind == REASONING for kind, _ in tokens)
        self.called = self.called or any(kind == CALL for kind, _ in tokens)

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": model}

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }
        if not self.request.stream:
            usage["prompt_tokens_details"] = None
        if self.chat:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage

    async def whole(self, model: str, fingerprint: str) -> bytes:
        """The answer in one piece, once every sequence has ended."""
        said: list[list[Token]] = [[] for _ in self.request.sequences]
        for index, tokens, _ in await self.request.wait():
            said[index] += tokens
            self._count(tokens)
        make = self._chat_choice if self.chat else self._text_choice
        answer = {
            **self._head("chat.completion" if self.chat else "text_completion", model),
            "choices": [make(index, tokens) for index, tokens in enumerate(said)],
            "service_tier": None,
            "system_fingerprint": fingerprint,
            "usage": self._usage(),
            **NULLS_OF_ANSWER,
        }
        return dumps(answer)

    def _text_choice(self, index: int, tokens: list[Token]) -> dict[str, Any]:
        finish = self.request.sequences[index].finish
        return {"text": _text(tokens, CONTENT), **_choice(index, {}, finish), "stop_reason": None}

    def _chat_choice(self, index: int, tokens: list[Token]) -> dict[str, Any]:
        calls: list[dict[str, Any]] = []
        for kind, text in tokens:
            if kind == CALL:
                calls.append(_call(text))
            elif kind == ARGUMENTS:
                calls[-1]["function"]["arguments"] += text
        message: dict[str, Any] = {"role": "assistant", "content": _text(tokens, CONTENT) or None}
        message |= NULLS_OF_MESSAGE
        if calls:
            message["tool_calls"] = calls
        message["reasoning"] = _text(tokens, REASONING) or None
        finish = self._finish(self.request.sequences[index].finish)
        choice = _choice(index, {"message": message}, finish)
        return {**choice, "stop_reason": None, "token_ids": None, "routed_experts": None}

    def _finish(self, reason: str | None) -> str | None:
        return "tool_calls" if reason == "stop" and self.called else reason

    async def chunks(self, model: str, fingerprint: str) -> Any:
        """The answer as server-sent events: one write a step, which carries all its tokens."""
        head = self._head("chat.completion.chunk" if self.chat else "text_completion", model)
        opened, left = not self.chat, len(self.request.sequences)
        while left:
            data = b""
            for index, tokens, finish in await self.request.wait():
                if not opened:
                    opened = True
                    for one in range(len(self.request.sequences)):
                        choice = _choice(one, {"delta": {"role": "assistant", "content": ""}}, None)
                        data += event({**head, "choices": [choice], "prompt_token_ids": None, "prompt_text": None})
                self._count(tokens)
                for choice in self._deltas(index, tokens, self._finish(finish)):
                    data += event({**head, "choices": [choice]})
                left -= finish is not None
            yield data
        data = b""
        if self.include_usage:
            data = event({**head, "choices": [], "usage": self._usage(), "system_fingerprint": fingerprint})
        yield data + b"data: [DONE]\n\n"

    def _deltas(self, index: int, tokens: list[Token], finish: str | None) -> Iterator[dict[str, Any]]:
        """The chunks of one step: one a kind of text, as the reasoning parser cuts them."""
        if self.chat:
            whats: list[dict[str, Any]] = [
                {"delta": {kind: text}} for kind in (REASONING, CONTENT) if (text := _text(tokens, kind))
            ]
            whats += [{"delta": {"tool_calls": [_call_delta(*token)]}} for token in tokens if token[0] in _TOOL]
        else:
            whats = [{"text": _text(tokens, CONTENT)}]
        if finish and not whats:
            whats = [{"delta": {"content": ""}}]
        for what in whats:
            last = finish if what is whats[-1] else None
            stop = {"stop_reason": None} if last else {}
            yield {**_choice(index, what, last), **stop, "token_ids": None}


_TOOL = (CALL, ARGUMENTS)


def _text(tokens: list[Token], kind: str) -> str:
    return "".join(text for name, text in tokens if name == kind)


def _choice(index: int, what: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": index, **what, "logprobs": None, "finish_reason": finish}


def _call(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": ""}
    return {"id": f"chatcmpl-tool-{os.urandom(8).hex()}", "type": "function", "function": function}


def _call_delta(kind: str, text: str) -> dict[str, Any]:
    return {"index": 0, **(_call(text) if kind == CALL else {"function": {"arguments": text}})}
