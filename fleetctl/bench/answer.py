"""What a response turns out to be: fed with bytes and the times they came, it fills a sample. Knows no network.

The mistakes of others that this is about: the role chunk taken for the first token, reasoning not seen, every line
counted as a token, a missing measurement written as 0 (facts/bench-status, 1.2).
"""

from __future__ import annotations

from typing import Any

import orjson

from fleetctl.bench.samples import Failure, Sample

LONGEST_LINE = 64 << 20
DONE = b"[DONE]"


class Stream:
    """Server-sent events as OpenAI's servers write them. `over`: nothing that still comes is of use."""

    def __init__(self, sample: Sample, model: str, max_tokens: int) -> None:
        self.sample = sample
        self.model = model
        self.max_tokens = max_tokens
        self.done = self.over = False
        self._most = 2 * max_tokens + 64  # chunks with tokens: a token makes one, or none
        self._rest = b""

    def feed(self, data: bytes, at: float) -> None:
        """Bytes that came `at`."""
        data = self._rest + data if self._rest else data
        lines = data.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), at)
        if len(self._rest) > LONGEST_LINE:
            self._fail(Failure.GARBLED, f"a line of more than {LONGEST_LINE >> 20} MiB")
            self.over = True
        if self.sample.chunks > self._most:
            words = f"it does not end: more than {self._most} chunks for max_tokens {self.max_tokens}"
            self._fail(Failure.GARBLED, words)
            self.over = True

    def close(self) -> None:
        """The body has ended as HTTP says it should."""
        if self._rest.strip():
            self.feed(b"\n", self.sample.last or self.sample.headers or 0.0)
        sample = self.sample
        if not self.done:
            nothing = sample.chunks == 0 and sample.role is None
            what = "the answer has no events" if nothing else "the stream ended without [DONE]"
            self._fail(Failure.GARBLED if nothing else Failure.CUT, what)
        elif sample.finish is None:
            self._fail(Failure.CUT, "no finish_reason before [DONE]")
        elif sample.completion_tokens is None:
            self._fail(Failure.USAGE, "the stream carried no usage although it was asked for")

    def _event(self, data: bytes, at: float) -> None:
        if data == DONE:
            self.done = True
            return
        try:
            event = orjson.loads(data)
        except ValueError:
            self._fail(Failure.GARBLED, f"not JSON: {_shown(data)}")
            return
        if not isinstance(event, dict):
            self._fail(Failure.GARBLED, f"not an object: {_shown(data)}")
        elif "error" in event:
            self._fail(Failure.ENGINE, _shown(data))
        else:
            try:
                self._chunk(event, at)
            except (AttributeError, TypeError):
                self._fail(Failure.GARBLED, f"not a chunk of a completion: {_shown(data)}")

    def _chunk(self, event: dict[str, Any], at: float) -> None:
        sample = self.sample
        self._check_model(event.get("model"))
        if usage := event.get("usage"):
            take_usage(sample, usage)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if sample.role is None and delta.get("role"):
                sample.role = at
            said = delta.get("content") or choice.get("text") or _calls(delta)
            thought = delta.get("reasoning") or delta.get("reasoning_content")
            if said or thought:
                self._token(at, answered=bool(said))
            sample.finish = choice.get("finish_reason") or sample.finish

    def _token(self, at: float, *, answered: bool) -> None:
        sample = self.sample
        sample.chunks += 1
        if sample.first is None:
            sample.first = at
        elif sample.last is not None:
            sample.gaps.append(at - sample.last)
        if answered and sample.answer is None:
            sample.answer = at
        sample.last = at

    def _check_model(self, model: Any) -> None:
        if model is not None and model != self.model:
            self._fail(Failure.MODEL, f"{model!r} answered instead of {self.model!r}")

    def _fail(self, failure: Failure, detail: str) -> None:
        fail(self.sample, failure, detail)


class Whole:
    """An answer in one piece. There is no first token to time: `first` stays None. `over` as in Stream."""

    def __init__(self, sample: Sample, model: str) -> None:
        self.sample = sample
        self.model = model
        self.over = False
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, at: float) -> None:
        self._parts.append(data)
        self._size += len(data)
        self.sample.last = at
        if self._size > LONGEST_LINE:
            fail(self.sample, Failure.GARBLED, f"an answer of more than {LONGEST_LINE >> 20} MiB")
            self.over = True

    def close(self) -> None:
        sample, body = self.sample, b"".join(self._parts)
        if not body.strip():
            fail(sample, Failure.GARBLED, "the answer is empty")
            return
        try:
            document = orjson.loads(body)
            choice = document["choices"][0]
            sample.finish = choice.get("finish_reason")
            take_usage(sample, document.get("usage") or {})
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            fail(sample, Failure.GARBLED, f"no completion: {_shown(body)}")
            return
        if document.get("model") not in (None, self.model):
            fail(sample, Failure.MODEL, f"{document['model']!r} answered instead of {self.model!r}")
        if sample.completion_tokens is None:
            fail(sample, Failure.USAGE, "the answer carries no usage")


def take_usage(sample: Sample, usage: dict[str, Any]) -> None:
    """Token counts are the server's own: no tokenizer here can be wrong about them."""
    sample.prompt_tokens = _number(usage, "prompt_tokens")
    sample.completion_tokens = _number(usage, "completion_tokens")
    sample.reasoning_tokens = _number(usage.get("completion_tokens_details") or {}, "reasoning_tokens")
    sample.cached_tokens = _number(usage.get("prompt_tokens_details") or {}, "cached_tokens")


def fail(sample: Sample, failure: Failure, detail: str) -> None:
    """The first thing that goes wrong is the reason; what follows from it is not."""
    if sample.failure is None:
        sample.failure = failure
        sample.detail = detail[:300]


def _number(entry: Any, name: str) -> int | None:
    value = entry.get(name) if isinstance(entry, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _calls(delta: dict[str, Any]) -> bool:
    calls = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    return any(call.get("name") or call.get("arguments") for call in calls)


def _shown(data: bytes) -> str:
    return data[:120].decode(errors="replace")
