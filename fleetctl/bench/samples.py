"""Raw samples on disk: JSON lines that hold all that is needed to repeat the run and to compute every number again.

    {"kind": "header", "schema": 1, "scenario": ..., "seed": ..., "parameters": ..., ...}
    {"kind": "sample", ...}        one per request, written as it ends
    {"kind": "event", ...}         a cell begins, foreign traffic was seen, an instance was killed
    {"kind": "end", "partial": false, ...}

Times are seconds since the run's start by a clock that does not jump. A file without its last line is a run that was
killed: what is there is valid, and partial.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from fleetctl.errors import UsageError

SCHEMA = 1


class Failure(str, Enum):
    """Why a request gave no usable answer. INTERRUPTED is the run's own doing and counts as no failure."""

    CONNECT = "no connection"
    TIMEOUT = "timeout"
    STATUS = "status"
    CUT = "cut"
    GARBLED = "not what was asked for"
    MODEL = "wrong model"
    ENGINE = "error in the stream"
    USAGE = "no usage"
    DROPPED = "not sent"
    INTERRUPTED = "interrupted"


@dataclass
class Sample:
    """One request. Times in seconds since the run's start; None: it did not come to that.

    `scheduled`: when it should have been sent (closed loop: when its user was free); every latency counts from here.
    `first`: first token of any kind (reasoning, content or tool call; never the role chunk). `answer`: first token that
    is not reasoning. `last`: last token. `gaps`: seconds between chunks with tokens. `home`: the backend that the
    session key computes to.
    """

    number: int
    cell: str
    session: str
    scheduled: float
    warmup: bool = False
    stream: bool = True
    home: str | None = None
    backend: str | None = None
    request_id: str | None = None
    sent: float | None = None
    headers: float | None = None
    role: float | None = None
    first: float | None = None
    answer: float | None = None
    last: float | None = None
    end: float | None = None
    status: int | None = None
    failure: Failure | None = None
    detail: str | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    asked_tokens: int | None = None
    chunks: int = 0
    gaps: list[float] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def counted(self) -> bool:
        """Measured: neither warm-up nor cut off by the end of the run."""
        return not self.warmup and self.failure is not Failure.INTERRUPTED

    @property
    def failed(self) -> bool:
        return self.failure not in (None, Failure.INTERRUPTED)

    @property
    def moved(self) -> bool:
        """It was answered by another backend than its session key computes to."""
        return self.home is not None and self.backend is not None and self.home != self.backend

    @property
    def why(self) -> str:
        """The failure in words, `status 502` for statuses."""
        if self.failure is None:
            return "ok"
        return f"{self.failure.value} {self.status}" if self.failure is Failure.STATUS else self.failure.value


NAMES = tuple(one.name for one in fields(Sample))
DEFAULTS = {one.name: one.default for one in fields(Sample)}
TEXTS = ("cell", "session", "home", "backend", "request_id", "detail", "finish")  # all others but two are numbers


def encode(sample: Sample) -> dict[str, Any]:
    """A sample as JSON: times to the microsecond, what is at its default left out."""
    document: dict[str, Any] = {"kind": "sample"}
    for name in NAMES:
        value = getattr(sample, name)
        if value == DEFAULTS[name] or value == []:
            continue
        if name == "gaps":
            value = [round(gap, 5) for gap in value]
        elif isinstance(value, float):
            value = round(value, 6)
        elif isinstance(value, Failure):
            value = value.name.lower()
        document[name] = value
    return document


def decode(document: Mapping[str, Any]) -> Sample:
    """Raises KeyError, TypeError or ValueError for what is no sample."""
    values = {name: document[name] for name in NAMES if name in document}
    if values.get("failure") is not None:
        values["failure"] = Failure[str(values["failure"]).upper()]
    for name, value in values.items():
        if name == "failure" or (value is None and DEFAULTS[name] is None):
            continue
        wanted = str if name in TEXTS else int | float
        parts = value if name == "gaps" and isinstance(value, list) else [value]
        if not all(isinstance(one, wanted) for one in parts) or (name == "gaps") is not isinstance(value, list):
            raise ValueError(f"{name} {value!r}")
    return Sample(**values)


@dataclass(frozen=True)
class Backend:
    """An instance as the balancer names it."""

    id: str
    address: str


@dataclass
class Header:
    """What a run was: enough to run it again, and to see whether another run may be compared with it."""

    scenario: str
    seed: int
    parameters: dict[str, Any]
    model: str
    url: str
    started: str = ""
    fleet: str = ""
    release: dict[str, Any] | None = None
    image: dict[str, Any] = field(default_factory=dict)
    tokens: int | None = None
    affinity: str = ""
    backends: list[Backend] = field(default_factory=list)
    weights: list[float] | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    foreign_before: int | None = None

    def encode(self) -> dict[str, Any]:
        return {"kind": "header", "schema": SCHEMA, **asdict(self)}


@dataclass
class Run:
    """One file, read back. `end` is None when the run was killed."""

    header: Header
    samples: list[Sample]
    events: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def partial(self) -> str | None:
        """Why this is not the whole run; None when it is."""
        if self.end is None:
            return "it was killed: the last line is missing"
        return str(self.end.get("reason") or "it was stopped") if self.end.get("partial") else None

    @property
    def invalid(self) -> list[str]:
        """Why these numbers are the client's and not the fleet's; empty when they are the fleet's."""
        return list((self.end or {}).get("self_check", {}).get("reasons", []))

    @property
    def measured(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.counted]

    def cells(self) -> list[str]:
        """In the order in which they began."""
        return list(dict.fromkeys(sample.cell for sample in self.samples if not sample.warmup))

    def of(self, cell: str) -> list[Sample]:
        return [sample for sample in self.measured if sample.cell == cell]


LEAST_OF_A_KEY = 6  # characters


def masked(text: str, key: str) -> str:
    """Without the key, also where the text was cut off within it: the beginning of a key is most of a key."""
    if not key:
        return text
    text = text.replace(key, "***")
    for length in range(len(key) - 1, LEAST_OF_A_KEY - 1, -1):
        if text.endswith(key[:length]):
            return f"{text[:-length]}***"
    return text


class Writer:
    """Writes a run as it happens; `mask` is replaced wherever an answer repeated it (the key)."""

    def __init__(self, path: Path, header: Header, mask: str = "") -> None:
        self.path = path
        self._mask = json.dumps(mask)[1:-1]  # as it stands in a line
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIOWrapper = path.open("x", encoding="utf-8")
        self._line(header.encode())
        self._file.flush()

    def sample(self, sample: Sample) -> None:
        self._line(encode(sample))

    def event(self, at: float, what: str, **more: Any) -> None:
        self._line({"kind": "event", "at": round(at, 6), "what": what, **more})

    def end(self, document: Mapping[str, Any]) -> None:
        self._line({"kind": "end", **document})
        self.close()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _line(self, document: Mapping[str, Any]) -> None:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        if self._mask:
            text = text.replace(self._mask, "***")
        self._file.write(text + "\n")


def read(path: Path) -> Run:
    """A file of samples. A last line that was cut off is dropped. Raises UsageError for anything that is no run."""
    try:
        with path.open(encoding="utf-8") as file:
            documents = list(_documents(file, path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'not a file of samples'}") from None
    if not documents or documents[0].get("kind") != "header":
        raise UsageError(f"{path}: not a file of samples: its first line is no header")
    head = documents[0]
    if head.get("schema") != SCHEMA:
        raise UsageError(f"{path}: written in schema {head.get('schema')}, this fleetctl reads {SCHEMA}")
    known = {one.name for one in fields(Header)}
    try:
        header = Header(**{name: value for name, value in head.items() if name in known})
        header.backends = [Backend(**one) for one in head.get("backends", [])]
        samples = [decode(one) for one in documents if one.get("kind") == "sample"]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: not a file of samples: {error}") from None
    events = [one for one in documents if one.get("kind") == "event"]
    end = next((one for one in documents if one.get("kind") == "end"), None)
    return Run(header, samples, events, end)


def _documents(file: TextIOWrapper, path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, 1):
        try:
            document = json.loads(line)
        except ValueError:
            if not line.endswith("\n"):
                return
            raise UsageError(f"{path}:{number}: not JSON") from None
        if not isinstance(document, dict):
            raise UsageError(f"{path}:{number}: not an object")
        yield document
