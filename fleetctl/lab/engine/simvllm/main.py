"""The life of one engine: check, load, serve, end. Process 1 of its container.

Environment: SIM_LOAD_SECONDS (2), SIM_RELEASE_SECONDS (0.5: from the end of serving to the release of the
devices), SIM_LATE_RELEASE_SECONDS (20: added by the fault late-release), SIM_SLOW_START_SECONDS (60: added by the
fault slow-start), SIM_TOKENS_PER_SECOND (60), SIM_PREFILL_TOKENS_PER_SECOND (3300), SIM_ROOT (tests).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from typing import Any, NoReturn

from . import BANNER, VERSION, flags, log, seconds, startup
from .faults import Faults, load_seconds
from .worker import Workers

HBM_MB = 65536
IDLE_HBM_MB = 3400
STATS_SECONDS = 10


class EngineDeadError(Exception):
    """The engine core has ended while the server was up; carries the exit status."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def main(argv: list[str]) -> int:
    if not argv:
        flags.main_help()
        return 2
    chosen, changed = flags.parse(argv)
    workers = Workers()
    signal.signal(signal.SIGTERM, _stopped_early)
    try:
        return run(chosen, changed, workers)
    except startup.StartupError as error:
        log.traceback(error.process, *error.lines)
        if error.process != "APIServer":
            log.traceback(
                "APIServer", "RuntimeError: Engine core initialization failed. See root cause above."
            )
        return 1
    except EngineDeadError as death:
        return death.code
    finally:
        workers.release()


def _stopped_early(*_: object) -> NoReturn:
    """SIGTERM before the server is up: nothing to abort; ends as an unhandled SIGTERM would."""
    sys.exit(143)


def run(chosen: Namespace, changed: dict[str, Any], workers: Workers) -> int:
    log.info("api_server.py:1971", f"vLLM API server version {BANNER}")
    log.info("utils.py:253", f"non-default args: {changed}")
    startup.configuration(chosen)
    draft = startup.speculation(chosen)
    faults = Faults(chosen.port)
    server = startup.bind(chosen.host, chosen.port)
    log.info(
        "core.py:94",
        f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{chosen.model}'",
        "EngineCore",
    )
    tools = startup.npu_tools()
    physical = startup.devices(chosen.tensor_parallel_size * chosen.pipeline_parallel_size)
    megabytes = round(HBM_MB * chosen.gpu_memory_utilization) - IDLE_HBM_MB
    busy = workers.start(physical, megabytes)
    if busy is not None:
        raise startup.device_busy(busy)
    _load(chosen, draft, faults, tools)
    code = asyncio.run(serve(chosen, draft, faults, server, workers))
    _linger(faults)
    return code


def _load(chosen: Namespace, draft: int, faults: Faults, tools: bool) -> None:
    began = time.monotonic()
    duration = load_seconds(seconds("SIM_LOAD_SECONDS", 2.0))
    if "slow-start" in faults:
        duration += seconds("SIM_SLOW_START_SECONDS", 60.0)
    log.info("model_runner_v1.py:3105", f"Starting to load model {chosen.model}...", "EngineCore")

    def wait(span: float) -> None:
        time.sleep(span)
        faults.read()
        for word, code in (("exit0", 0), ("exit1", 1)):
            if word in faults:
                faults.spent()
                log.traceback("EngineCore", "EngineCore failed to start.", "RuntimeError: injected fault")
                raise EngineDeadError(code)

    startup.load(chosen.model, duration * 0.8, wait)
    took = time.monotonic() - began
    log.info("default_loader.py:314", f"Loading weights took {took:.2f} seconds", "EngineCore")
    if draft and (chosen.speculative_config or {}).get("method") in ("mtp", "qwen3_5_mtp") and not tools:
        raise startup.StartupError(
            "  triton/backends/ascend/utils.py, in get_ascend_arch_from_npu_smi",
            "SystemError: <built-in function get_arch> returned NULL without setting an exception",
        )
    wait(duration * 0.2)
    log.info("kv_cache_utils.py:1307", "GPU KV cache size: 2,097,152 tokens", "EngineCore")
    if not chosen.enforce_eager:
        log.info(
            "gpu_model_runner.py:5010", f"Graph capturing finished in {duration * 0.2:.0f} secs", "EngineCore"
        )
    took = time.monotonic() - began
    log.info(
        "core.py:282",
        f"init engine (profile, create kv cache, warmup model) took {took:.2f} seconds",
        "EngineCore",
    )


def _linger(faults: Faults) -> None:
    """Keeps the devices for a while after serving ends; the container's stop timeout limits it."""
    faults.read()
    late = seconds("SIM_LATE_RELEASE_SECONDS", 20.0) if "late-release" in faults else 0.0
    time.sleep(seconds("SIM_RELEASE_SECONDS", 0.5) + late)


def api_keys(chosen: Namespace) -> list[str]:
    """Keys in force: --api-key, else VLLM_API_KEY; none means that everybody may call."""
    key = os.environ.get("VLLM_API_KEY")
    return list(chosen.api_key or ([key] if key else []))


async def serve(
    chosen: Namespace, draft: int, faults: Faults, listener: socket.socket, workers: Workers
) -> int:
    """Serves until SIGTERM or SIGINT (exit status 0) or until the engine dies (raises EngineDeadError)."""
    from .api import Api
    from .http import Connection, Server
    from .metrics import Metrics
    from .scheduler import Limits, Scheduler

    name = (chosen.served_model_name or [chosen.model])[0]
    limits = Limits(
        chosen.max_num_seqs or 256,
        chosen.max_num_batched_tokens or 8192,
        draft,
        chosen.enable_prefix_caching is not False,
    )
    cache = {"gpu_memory_utilization": str(chosen.gpu_memory_utilization), "block_size": "128"}
    metrics = Metrics(name, draft, cache)
    scheduler = Scheduler(limits, metrics)
    server = Server(
        Api(chosen, api_keys(chosen), scheduler, metrics, faults),
        seconds("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5.0),
    )
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: stop.done() or stop.set_result(0))
    core = loop.create_task(scheduler.run())
    core.add_done_callback(
        lambda task: stop.done() or stop.set_exception(task.exception() or EngineDeadError(0))
    )
    log.uvicorn(f"Started server process [{os.getpid()}]")
    log.uvicorn("Waiting for application startup.")
    sockets = await loop.create_server(lambda: Connection(server), sock=listener, backlog=2048)
    log.uvicorn("Application startup complete.")
    watch = loop.create_task(_watch(scheduler, faults, workers, stop))
    try:
        return await _until(stop, chosen.shutdown_timeout, sockets, server)
    finally:
        watch.cancel()
        core.cancel()
        server.shut(abort=True)
        await asyncio.sleep(0)


async def _until(stop: asyncio.Future[int], timeout: float, sockets: asyncio.Server, server: Any) -> int:
    """Waits for the end and lets requests in flight finish for at most `timeout` seconds."""
    try:
        code = await stop
    except EngineDeadError:
        sockets.close()
        raise
    log.info("launcher.py:110", f"Shutdown initiated (timeout={timeout:g})")
    sockets.close()
    server.shut(abort=not timeout)
    deadline = time.monotonic() + timeout
    while server.busy and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    if server.busy:
        log.warning("launcher.py:118", f"Shutdown timeout reached, aborting {server.busy} requests")
    log.uvicorn("Shutting down")
    log.uvicorn("Application shutdown complete.")
    return code


async def _watch(scheduler: Any, faults: Faults, workers: Workers, stop: asyncio.Future[int]) -> None:
    """Once a second: the faults in force, a worker that died, and the line of statistics every ten."""
    beats, steps = 0, 0
    while True:
        faults.read()
        scheduler.faults = faults.words
        code = 1 if "exit1" in faults else 0 if "exit0" in faults else None
        if dead := workers.dead():
            log.line(
                "ERROR",
                "multiproc_executor.py:230",
                f"Worker proc VllmWorker-{dead.rank} died unexpectedly, shutting down executor.",
                "EngineCore",
            )
            code = 0
        if code is not None and not stop.done():
            faults.spent()
            log.traceback(
                "EngineCore",
                "EngineCore encountered a fatal error.",
                "RuntimeError: AclrtSynchronizeStreamWithTimeout, error code is 507014",
            )
            log.traceback(
                "APIServer",
                "AsyncLLM output_handler failed.",
                "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
            )
            stop.set_exception(EngineDeadError(code))
            return
        beats += 1
        if beats % STATS_SECONDS == 0 and scheduler.steps != steps:
            steps = scheduler.steps
            log.info(
                "loggers.py:257",
                f"Engine 000: Running: {len(scheduler.running)} reqs, Waiting: {len(scheduler.waiting)} reqs",
            )
        await asyncio.sleep(1)
