"""The life of one engine: check, load, serve, end. Process 1 of its container.

Environment: SIM_LOAD_SECONDS (2), SIM_RELEASE_SECONDS (0.5: from the end of serving to the release of the
devices), SIM_LATE_RELEASE_SECONDS (20: added by the fault late-release), SIM_SLOW_START_SECONDS (60: added
by the fault slow-start), SIM_TOKENS_PER_SECOND (60), SIM_PREFILL_TOKENS_PER_SECOND (3300), SIM_ROOT (tests).
"""

from __future__ import annotations

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
            log.traceback("APIServer", "RuntimeError: Engine core initialization failed. See root cause above.")
        return 1
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
    code = _serve(chosen, draft, faults, workers, server)
    _linger(faults)
    return code


def _load(chosen: Namespace, draft: int, faults: Faults, tools: bool) -> None:
    began = time.monotonic()
    duration = load_seconds(seconds("SIM_LOAD_SECONDS", 2.0))
    if "slow-start" in faults:
        duration += seconds("SIM_SLOW_START_SECONDS", 60.0)
    log.info("model_runner_v1.py:3105", f"Starting to load model {chosen.model}...", "EngineCore")

    def wait(span: float) -> None:
        end = time.monotonic() + span
        while True:
            faults.read()
            if (code := faults.exit_code()) is not None:
                faults.spent()
                log.traceback("EngineCore", "EngineCore failed to start.", "RuntimeError: injected fault")
                sys.exit(code)
            if (left := end - time.monotonic()) <= 0:
                return
            time.sleep(min(1.0, left))

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
        log.info("gpu_model_runner.py:5010", f"Graph capturing finished in {duration * 0.2:.0f} secs", "EngineCore")
    took = time.monotonic() - began
    log.info(
        "core.py:282",
        f"init engine (profile, create kv cache, warmup model) took {took:.2f} seconds",
        "EngineCore",
    )


def _serve(chosen: Namespace, draft: int, faults: Faults, workers: Workers, server: socket.socket) -> int:
    """Loads the event loop only now, so that the workers stay small."""
    import asyncio

    from .serve import Life, serve

    keys = api_keys(chosen)
    return asyncio.run(serve(lambda: Life(chosen, keys, draft, faults, workers), server))


def _linger(faults: Faults) -> None:
    """Keeps the devices for a while after serving ends; the container's stop timeout limits it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faults.read()
    late = seconds("SIM_LATE_RELEASE_SECONDS", 20.0) if "late-release" in faults else 0.0
    time.sleep(seconds("SIM_RELEASE_SECONDS", 0.5) + late)


def api_keys(chosen: Namespace) -> list[str]:
    """Keys in force: --api-key, else VLLM_API_KEY; none means that everybody may call."""
    key = os.environ.get("VLLM_API_KEY")
    return list(chosen.api_key or ([key] if key else []))
