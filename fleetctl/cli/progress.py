"""How long work is shown: bars in a terminal, a line every few seconds without one, JSON lines beside JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import TracebackType
from typing import Any, Protocol

from fleetctl.cli.output import Voice, colourful
from fleetctl.plan.meter import HEARTBEAT, Progress
from fleetctl.plan.operation import Operation


class Shown(Protocol):
    """Is told of every look at a job, from any thread."""

    def __call__(self, operation: Operation, progress: Progress) -> None: ...

    def __enter__(self) -> Shown: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def shown(voice: Voice, *, as_json: bool) -> Shown:
    """What suits where stderr goes."""
    if colourful(sys.stderr) and not voice.quiet and not as_json:
        return Bars(voice)
    return Lines(voice, as_json=as_json)


class Lines:
    """A line a job every few seconds."""

    def __init__(self, voice: Voice, *, as_json: bool = False) -> None:
        self._voice, self._json = voice, as_json
        self._spoken: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, operation: Operation, progress: Progress) -> None:
        key = (operation.machine, operation.step)
        with self._lock:
            if time.monotonic() - self._spoken.get(key, -HEARTBEAT) < HEARTBEAT:
                return
            self._spoken[key] = time.monotonic()
        if self._json:
            self._voice.line(json.dumps({"progress": document(operation, progress)}))
        else:
            words = str(progress) if progress.total else progress.words
            self._voice(operation.target, f"{operation.step}: {words}")


def document(operation: Operation, progress: Progress) -> dict[str, Any]:
    """Bytes, bytes a second, seconds; what is unknown is null."""
    known = bool(progress.total)
    return {
        "machine": operation.machine,
        "step": operation.step,
        "done": progress.done if known else None,
        "total": progress.total if known else None,
        "rate": round(progress.rate) if progress.rate is not None and known else None,
        "left": round(progress.left) if progress.left is not None and known else None,
        "words": progress.words,
    }


class Bars:
    """One bar a job at the foot of the terminal; other lines go above them."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._bars: Any = None
        self._tasks: dict[tuple[int, str], Any] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._voice.above = None
            self._bars.stop()

    def __call__(self, operation: Operation, progress: Progress) -> None:
        if not progress.total:
            return
        with self._lock:
            if self._bars is None:
                self._start()
            key = (operation.machine, operation.step)
            if key not in self._tasks:
                label = f"{operation.target} {operation.step}"
                self._tasks[key] = self._bars.add_task(label, total=progress.total, words="")
            words = str(progress).split("% of ")[-1]
            self._bars.update(self._tasks[key], completed=progress.done, total=progress.total, words=words)
            if progress.done >= progress.total:
                self._bars.update(self._tasks[key], visible=False)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(24),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[words]}"),
        )
        self._bars = Progress(*columns, console=console, transient=True)
        self._voice.above = lambda text: console.print(text, markup=False)
        self._bars.start()
