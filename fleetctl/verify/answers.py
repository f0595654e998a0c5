"""What came back: files that the scripts print, as answers; JSON, streams and metrics in them. Pure.

Whatever a backend sends is read without an exception: an empty body, HTML, half a document, a stream without an end.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fleetctl.observe.facts import parse_json
from fleetctl.verify.asks import DONE

TOO_LATE = 28  # curl: the time limit was reached
TOO_LONG = 23  # curl: it could not write on, at 4 MiB
TOGETHER = 0.001  # seconds; what arrives closer together than this arrived at once
SHOWN = 60  # characters of a foreign body in a message
LINE_END = re.compile(r"\r\n|\n|\r")  # of a stream; a text in it may hold what else Python takes for one


@dataclass(frozen=True)
class Answer:
    """`http` is 0 when there was none; `exit` is curl's. `times`: seconds at which pieces of a stream arrived."""

    http: int
    exit: int = 0
    error: str = ""
    seconds: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    times: tuple[float, ...] = ()

    def every(self, header: str) -> tuple[str, ...]:
        """All values of a header; two headers of the same name are two."""
        return tuple(value for name, value in self.headers if name == header.lower())

    def header(self, name: str) -> str | None:
        found = self.every(name)
        return found[-1] if found else None

    @property
    def backend(self) -> str | None:
        """X-Upstream-Addr: who answered."""
        return self.header("x-upstream-addr")

    @cached_property
    def json(self) -> Any:
        return parse_json(self.body)

    @property
    def words(self) -> str:
        """The status, or why there is none."""
        if self.http:
            return str(self.http)
        if self.exit == TOO_LATE:
            return f"nothing within {self.seconds:.0f} s"
        return f"no answer ({self.error or f'curl {self.exit}'})"

    @property
    def problem(self) -> str | None:
        """Why this is not a whole 200 with a JSON object."""
        if self.http != 200:
            return f"answers {self.words}{_excerpt(self.body)}" if self.http else self.words
        if self.exit == TOO_LATE:
            return f"200, and not whole within {self.seconds:.0f} s"
        if self.exit:
            return f"200, and cut off ({self.error or f'curl {self.exit}'})"
        if not self.body.strip():
            return "200 with an empty body"
        if not isinstance(self.json, dict):
            return f"200, and the body is no JSON{_excerpt(self.body)}"
        return None


NOTHING = Answer(0, error="was not asked")


def _excerpt(body: str) -> str:
    text = " ".join(body.split())
    return f": {text[:SHOWN]}{'...' if len(text) > SHOWN else ''}" if text else ""


def files(text: str, mark: str) -> dict[str, str]:
    """What `head` printed of several files, by name without the mark. The mark is random: no body can hold it."""
    parts = re.split(rf"^==> {re.escape(mark)}\.(\S+) <==\n", text, flags=re.MULTILINE)
    # head puts an empty line between two files.
    return {name: text.removesuffix("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def parse(text: str, mark: str, count: int) -> list[Answer]:
    """The answers to `count` requests, in their order; one that left no trace is an answer without a status."""
    part = files(text, mark)
    done = _reports(part.get("http", ""))
    return [_answer(done.get(n), part.get(f"{n}.head", ""), part.get(f"{n}.body", "")) for n in range(count)]


def parse_streams(text: str, mark: str, count: int) -> list[Answer]:
    """As `parse`, of `verify_stream.sh`: with the times at which curl received each piece."""
    part = files(text, mark)
    found = []
    for number in range(count):
        trace = part.get(f"{number}.times", "")
        answer = _answer(
            _reports(trace).get(0), part.get(f"{number}.head", ""), part.get(f"{number}.body", ""), _times(trace)
        )
        found.append(answer)
    return found


Report = tuple[int, int, float, str]


def _reports(text: str) -> dict[int, Report]:
    """curl's own lines: number -> status, exit, seconds, message."""
    found = {}
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        if len(words) >= 5 and words[0] == DONE and words[1].isdigit():
            found[int(words[1])] = (int(words[2]), int(words[3]), float(words[4]), "".join(words[5:]))
    return found


def _answer(report: Report | None, head: str, body: str, times: tuple[float, ...] = ()) -> Answer:
    if report is None:
        return Answer(0, error="curl did not report")
    status, exit, seconds, error = report
    # A proxy may send 100 or 103 first: the last block of headers counts.
    last = [block for block in re.split(r"\r?\n\r?\n", head.strip()) if block.startswith("HTTP/")]
    lines = last[-1].splitlines()[1:] if last else []
    headers = tuple(
        (name.strip().lower(), value.strip()) for name, colon, value in (x.partition(":") for x in lines) if colon
    )
    return Answer(status, exit, error, seconds, headers, body, times)


_CLOCK = re.compile(r"^(\d+):(\d+):(\d+\.\d+)$")


def _times(trace: str) -> tuple[float, ...]:
    """Seconds since the first piece. Past midnight the clock starts over."""
    found: list[float] = []
    for line in trace.splitlines():
        if match := _CLOCK.match(line.strip()):
            at = int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])
            found.append(at + 86400 if found and at < found[0] - 43200 else at)
    return tuple(at - found[0] for at in found)


@dataclass(frozen=True)
class Stream:
    """Server-sent events of one answer. `done`: [DONE] came."""

    events: tuple[dict[str, Any], ...] = ()
    done: bool = False
    broken: str | None = None
    count: int = 0
    content: str = ""
    reasoning: str = ""
    deltas: int = 0
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: str | None = field(default=None)


def stream(answer: Answer) -> Stream:
    """The events of a stream, as far as they came."""
    events, done, broken, count = [], False, None, 0
    for line in LINE_END.split(answer.body):
        if not line.startswith("data:"):
            continue
        count += 1
        data = line[5:].strip()
        if data == "[DONE]":
            done = True
            continue
        event = parse_json(data)
        if isinstance(event, dict):
            events.append(event)
        else:
            broken = broken or data[:SHOWN]
    return _read(tuple(events), done, broken, count)


def _read(events: tuple[dict[str, Any], ...], done: bool, broken: str | None, count: int) -> Stream:
    content, reasoning, deltas, finish, usage, error = "", "", 0, None, None, None
    for event in events:
        if "error" in event:
            error = json.dumps(event["error"], ensure_ascii=False)[:SHOWN]
        if isinstance(event.get("usage"), dict):
            usage = event["usage"]
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            said, thought = text(delta.get("content")), text(delta.get("reasoning") or delta.get("reasoning_content"))
            content, reasoning = content + said, reasoning + thought
            deltas += bool(said or thought)
            finish = choice.get("finish_reason") or finish
    return Stream(events, done, broken, count, content, reasoning, deltas, finish, usage, error)


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def message(answer: Answer) -> dict[str, Any]:
    """`choices[0].message` of a chat completion; empty when there is none."""
    choice = first_choice(answer)
    found = choice.get("message")
    return found if isinstance(found, dict) else {}


def first_choice(answer: Answer) -> dict[str, Any]:
    document = answer.json
    choices = document.get("choices") if isinstance(document, dict) else None
    found = choices[0] if isinstance(choices, list) and choices else None
    return found if isinstance(found, dict) else {}


def usage(answer: Answer) -> dict[str, Any]:
    found = answer.json.get("usage") if isinstance(answer.json, dict) else None
    return found if isinstance(found, dict) else {}


def bundled(answer: Answer) -> tuple[int, int]:
    """Events of a stream, and how many of them arrived together with the one before: what a buffering proxy causes."""
    events = stream(answer).count
    moments = sum(1 for i, at in enumerate(answer.times) if i == 0 or at - answer.times[i - 1] >= TOGETHER)
    return events, max(0, events - moments)


def metric(page: str, name: str) -> float | None:
    """A counter summed over its label sets, with or without `_total`; None when the page does not have it."""
    found: float | None = None
    for line in page.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] in (name, f"{name}_total"):
            try:
                found = (found or 0.0) + float(value)
            except ValueError:
                continue
    return found
