"""The time between `Application startup complete.` and the end: serving, faults, draining."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

from . import log, seconds
from .api import Api
from .faults import Faults
from .http import Connection, Server
from .metrics import Metrics
from .scheduler import Limits, Scheduler
from .worker import Workers

STATS_SECONDS = 10


@dataclass(frozen=True)
class Ending:
    """Why serving ends: asked to (then requests in flight may finish), or the engine has died."""

    code: int
    died: bool


class Life:
    """One serving engine: everything that runs on the event loop."""

    def __init__(self, flags: Namespace, keys: list[str], draft: int, faults: Faults, workers: Workers) -> None:
        limits = Limits(
            flags.max_num_seqs or 256,
            flags.max_num_batched_tokens or 8192,
            draft,
            flags.enable_prefix_caching is not False,
        )
        cache = {"gpu_memory_utilization": str(flags.gpu_memory_utilization), "block_size": "128"}
        metrics = Metrics((flags.served_model_name or [flags.model])[0], draft, cache)
        self.flags = flags
        self.faults = faults
        self.workers = workers
        self.scheduler = Scheduler(limits, metrics)
        api = Api(flags, keys, self.scheduler, metrics, faults)
        self.server = Server(api, seconds("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5.0))
        self.ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

    def end(self, code: int, died: bool) -> None:
        if not self.ending.done():
            self.ending.set_result(Ending(code, died))

    async def run(self, listener: socket.socket) -> int:
        """Serves until the end; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end, 0, False)
        log.uvicorn(f"Started server process [{os.getpid()}]")
        log.uvicorn("Waiting for application startup.")
        accepting = await loop.create_server(lambda: Connection(self.server), sock=listener, backlog=2048)
        log.uvicorn("Application startup complete.")
        tasks = [loop.create_task(self.scheduler.run()), loop.create_task(self._watch())]
        for task in tasks:
            task.add_done_callback(lambda _: self.end(0, True))
        ending = await self.ending
        accepting.close()
        if not ending.died:
            await self._drain(self.flags.shutdown_timeout)
        for task in tasks:
            task.cancel()
        self.server.shut(abort=True)
        await asyncio.sleep(0)
        return ending.code

    async def _drain(self, timeout: float) -> None:
        """Lets requests in flight finish for at most `timeout` seconds; 0 aborts them at once."""
        log.info("launcher.py:110", f"Shutdown initiated (timeout={timeout:g})")
        self.server.shut(abort=not timeout)
        deadline = time.monotonic() + timeout
        while self.server.busy and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self.server.busy and timeout:
            log.warning("launcher.py:118", f"Shutdown timeout, aborting {self.server.busy} requests")
        log.uvicorn("Shutting down")
        log.uvicorn("Application shutdown complete.")

    async def _watch(self) -> None:
        """Once a second: the faults in force, a worker that died, and every ten the line of statistics."""
        beats = steps = 0
        while not self._dead():
            beats += 1
            if beats % STATS_SECONDS == 0 and self.scheduler.steps != steps:
                steps = self.scheduler.steps
                running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
                log.info("loggers.py:257", f"Engine 000: Running: {running} reqs, Waiting: {waiting} reqs")
            await asyncio.sleep(1)

    def _dead(self) -> bool:
        """Takes up the faults; says whether the engine core has just ended, and ends the server with it."""
        self.faults.read()
        self.scheduler.faults = self.faults.words
        code = self.faults.exit_code()
        cause = "RuntimeError: AclrtSynchronizeStreamWithTimeout, error code is 507014"
        if worker := self.workers.dead():
            code, cause = (
                0,
                f"Worker proc VllmWorker-{worker.rank} died unexpectedly, shutting down executor.",
            )
        if code is None:
            return False
        self.faults.spent()
        log.traceback("EngineCore", "EngineCore encountered a fatal error.", cause)
        log.traceback(
            "APIServer",
            "AsyncLLM output_handler failed.",
            "EngineDeadError: EngineCore encountered an issue.",
        )
        self.end(code, True)
        return True


async def serve(life: Callable[[], Life], listener: socket.socket) -> int:
    """Serves on the bound socket until SIGTERM, SIGINT or the engine's death; the exit status."""
    return await life().run(listener)
