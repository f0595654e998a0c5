"""What vLLM-Ascend checks before it serves, with the lines it leaves in the log when a check fails.

Sources of the signatures: facts of vllm-ascend issues (device ids: gpustack#3352; device held: vllm-ascend
#248 and #2542; get_arch: the 16-backend report, section 11) and vLLM's own messages.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import log, rooted

DRIVER_LIBRARIES = "/usr/local/Ascend/driver/lib64"
MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
MAX_DRAFT_TOKENS = 15


class StartupError(Exception):
    """The engine cannot start; the lines are what the real log shows, the last one is the cause."""

    def __init__(self, *lines: str, process: str = "EngineCore") -> None:
        super().__init__(lines[-1])
        self.lines = lines
        self.process = process


def visible_devices() -> list[int]:
    """The physical ids of the nodes this container has, in order."""
    names = [path.name for path in Path(rooted("/dev")).iterdir()]
    return sorted(int(name[7:]) for name in names if re.fullmatch(r"davinci\d+", name))


def devices(world: int) -> list[int]:
    """Physical ids of the devices to use. ASCEND_RT_VISIBLE_DEVICES counts within the visible nodes: host
    ids when a privileged container sees them all, 0..n-1 when n are mapped."""
    nodes = visible_devices()
    wish = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    ids = wish.split(",") if wish else [str(number) for number in range(len(nodes))]
    stamp = time.strftime("%Y-%m-%d-%H:%M:%S")
    for one in ids:
        if not one.strip().isdigit() or int(one) >= len(nodes):
            raise StartupError(
                f"EE1001: [PID: {os.getpid()}] {stamp} The argument is invalid.Reason: "
                f"set ASCEND_RT_VISIBLE_DEVICES:{one} error, input data rang[0-{len(nodes)})",
                "RuntimeError: aclrtGetDeviceCount failed, error code is 207004 The device is unavailable",
            )
    if len(ids) < world:
        raise StartupError(
            f"ValueError: World size ({world}) is larger than the number of available NPUs ({len(ids)})."
        )
    for name in MANAGERS:
        if not Path(rooted(f"/dev/{name}")).exists():
            raise StartupError(f"[drv] open /dev/{name} failed, drvErr=87", _busy(-1))
    return [nodes[int(one)] for one in ids[:world]]


def _busy(device: int) -> str:
    return f"RuntimeError: Initialize: NPU function error: aclrtSetDevice({device}), error code is 507899"


def device_busy(device: int) -> StartupError:
    return StartupError(f"halGetDeviceInfo failed, deviceId={device} drvErr=87", _busy(device))


def npu_tools() -> bool:
    """Whether npu-smi and the driver libraries are mounted; warns as the worker does when they are not."""
    folders = [*os.environ.get("PATH", "").split(":"), rooted("/usr/local/sbin"), rooted("/usr/local/bin")]
    tool = any(os.access(f"{folder}/npu-smi", os.X_OK) for folder in folders if folder)
    libraries = Path(rooted(DRIVER_LIBRARIES))
    if not tool:
        log.warning("worker.py:205", "npu-smi tool not found.", "EngineCore")
    return tool and libraries.is_dir() and any(libraries.iterdir())


def speculation(flags: Namespace) -> int:
    """num_speculative_tokens in force. Raises StartupError for a configuration that vLLM refuses."""
    spec = flags.speculative_config
    if not spec:
        return 0
    if not isinstance(spec, dict) or "num_speculative_tokens" not in spec:
        raise StartupError("ValueError: num_speculative_tokens must be provided", process="APIServer")
    method, tokens = spec.get("method"), spec["num_speculative_tokens"]
    if method == "qwen3_5_mtp":
        log.warning("speculative.py:310", "method `qwen3_5_mtp` is deprecated and replaced with mtp.")
    elif method not in ("mtp", "ngram", "eagle", "eagle3"):
        raise StartupError(f"ValueError: Unsupported speculative method: '{method}'", process="APIServer")
    if not isinstance(tokens, int) or not 0 <= tokens <= MAX_DRAFT_TOKENS:
        raise StartupError(f"ValueError: num_speculative_tokens={tokens} is not supported", process="APIServer")
    return tokens


def configuration(flags: Namespace) -> dict[str, Any]:
    """The model's config.json; settles max_model_len. Raises StartupError when the model is not one."""
    folder = Path(flags.model)
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        raise StartupError(
            f"ValueError: Invalid repository ID or local directory specified: '{flags.model}'.",
            process="APIServer",
        ) from None
    longest = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    if flags.max_model_len is None:
        flags.max_model_len = longest or 32768
    elif longest and flags.max_model_len > longest:
        raise StartupError(
            f"ValueError: User-specified max_model_len ({flags.max_model_len}) is greater than the derived "
            f"max_model_len (max_position_embeddings={longest}).",
            process="APIServer",
        )
    if flags.quantization == "ascend" and not (folder / "quant_model_description.json").is_file():
        raise StartupError("ValueError: Cannot find the config file for ascend", process="APIServer")
    if flags.enable_auto_tool_choice and not flags.tool_call_parser:
        raise StartupError(
            "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser", process="APIServer"
        )
    return config


def check_shard(path: Path) -> None:
    """Raises StartupError unless the safetensors file is there and as long as its header says."""
    if not path.is_file():
        raise StartupError(f'FileNotFoundError: No such file or directory: "{path}"')
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, 100_000_000):
            raise StartupError(
                "safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeaderLength"
            )
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StartupError(
                "safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeader"
            ) from None
    if 8 + length + max(ends, default=0) != size:
        raise StartupError(
            "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"
        )


def load(model: str, duration: float, wait: Callable[[float], None]) -> None:
    """Checks the shards of the index one by one while `duration` seconds go by."""
    folder = Path(model)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = [path.name for path in sorted(folder.glob("*.safetensors"))]
    if not names:
        raise StartupError(f"RuntimeError: Cannot find any model weights with `{model}`")
    began = time.monotonic()
    for number, name in enumerate(names):
        _progress(number, len(names), time.monotonic() - began)
        check_shard(folder / name)
        wait(duration / len(names))
    _progress(len(names), len(names), time.monotonic() - began)


def _progress(done: int, total: int, elapsed: float) -> None:
    bar = f"{100 * done // total:3d}% Completed | {done}/{total}"
    clock = f"{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}"
    sys.stderr.write(f"Loading safetensors checkpoint shards: {bar} [{clock}<?, {done / (elapsed or 1):.2f}it/s]\n")
    sys.stderr.flush()


def bind(host: str | None, port: int) -> socket.socket:
    """The API's socket, bound but not listening: connections are refused until the engine is ready."""
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host or "0.0.0.0", port))  # noqa: S104  as the real server does without --host
    except OSError as error:
        name = os.strerror(error.errno or errno.EADDRINUSE)
        raise StartupError(f"OSError: [Errno {error.errno}] {name}", process="APIServer") from None
    return server
