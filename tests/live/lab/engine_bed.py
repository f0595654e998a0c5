"""A machine of plain files for the simulated engine: devices, driver, model; started on loopback ports."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).parents[3] / "fleetctl" / "lab" / "engine"
MODEL = "Qwen3.8-27B-W8A8"
KEY = "sk-bed"
READY = "Application startup complete."
FLAGS = (
    "--tensor-parallel-size 2 --max-model-len 262144 --max-num-seqs 32 --max-num-batched-tokens 4096"
    " --disable-custom-all-reduce --distributed-executor-backend mp --reasoning-parser qwen3"
    " --enable-auto-tool-choice --tool-call-parser qwen3_coder --quantization ascend --trust-remote-code"
    " --dtype bfloat16"
)
MTP = ("--speculative-config", '{"method":"mtp","num_speculative_tokens":4}')


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Engine:
    """One started engine; its log is read line by line."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str] = field(default_factory=list)

    def until(self, text: str) -> str:
        """Reads the log up to the line that has `text`; fails when the engine ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"ended without {text!r}:\n{''.join(self.lines)}")

    def end(self, timeout: float = 10) -> int:
        """Waits for the end, reads the rest of the log, returns the exit status."""
        out, _ = self.process.communicate(timeout=timeout)
        self.lines += out.splitlines(keepends=True)
        return self.process.returncode

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def ask(
        self, method: str, path: str, body: Any = None, key: str | None = KEY, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def chat(self, prompt: str, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        status, _, body = self.ask("POST", "/v1/chat/completions", {"model": MODEL, "messages": messages, **fields})
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    def metric(self, name: str) -> float:
        """The sum of all series of one name."""
        text = self.ask("GET", "/metrics")[2].decode()
        rows = [row for row in text.splitlines() if row.split("{")[0].split(" ")[0] == name]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


class Bed:
    """The machine below `root`: `root/dev/davinciN`, the driver, the model, the fault files."""

    def __init__(self, root: Path, devices: int = 8) -> None:
        self.root = root
        self.driver = root / "usr/local/Ascend/driver"
        self.model = root / "model"
        self.faults = self.driver / "lab-faults"
        self.settings = root / "etc/npu-smi-lab"
        for folder in (self.driver / "lib64", self.driver / "lab-devices", self.faults, self.settings):
            folder.mkdir(parents=True)
        for folder in (root / "dev", root / "run", root / "usr/local/sbin", self.model):
            folder.mkdir(parents=True, exist_ok=True)
        (self.driver / "lib64/libdrvdsmi_host.so").touch()
        (root / "usr/local/sbin/npu-smi").symlink_to(ENGINE / "npu-smi")
        for number in range(devices):
            (root / f"dev/davinci{number}").touch()
            (self.driver / f"lab-devices/davinci{number}").touch()
        for name in ("davinci_manager", "devmm_svm", "hisi_hdc"):
            (root / "dev" / name).touch()
        self._make_model()

    def _make_model(self) -> None:
        (self.model / "config.json").write_text('{"max_position_embeddings": 262144}')
        (self.model / "quant_model_description.json").write_text("{}")
        names = {}
        for number in range(1, 5):
            name = f"model-{number:05d}-of-00004.safetensors"
            header = json.dumps({"w": {"dtype": "I8", "shape": [64], "data_offsets": [0, 64]}}).encode()
            (self.model / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
            names[f"w{number}"] = name
        (self.model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))

    def environment(self, **extra: str) -> dict[str, str]:
        speed = {"SIM_LOAD_SECONDS": "0", "SIM_RELEASE_SECONDS": "0", "SIM_TOKENS_PER_SECOND": "6000"}
        path = {"PATH": "/usr/bin:/bin", "SIM_ROOT": str(self.root), "VLLM_API_KEY": KEY}
        return {
            **path,
            **speed,
            "SIM_PREFILL_TOKENS_PER_SECOND": "1e9",
            "PYTHONDONTWRITEBYTECODE": "1",
            **extra,
        }

    def start(self, *flags: str, devices: str = "0,1", port: int = 0, **extra: str) -> Engine:
        port = port or free_port()
        argv = [sys.executable, str(ENGINE / "vllm"), "serve", str(self.model), "--host", "127.0.0.1"]
        argv += ["--port", str(port), "--served-model-name", MODEL, *FLAGS.split(), *flags]
        environment = self.environment(ASCEND_RT_VISIBLE_DEVICES=devices, **extra)
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return Engine(process, port)

    @contextlib.contextmanager
    def serving(self, *flags: str, devices: str = "0,1", port: int = 0, **extra: str) -> Iterator[Engine]:
        """An engine that is up; whatever happens it is gone afterwards."""
        engine = self.start(*flags, devices=devices, port=port, **extra)
        try:
            engine.until(READY)
            yield engine
        finally:
            engine.process.send_signal(signal.SIGTERM)
            try:
                engine.end(5)
            except subprocess.TimeoutExpired:
                engine.process.kill()
                engine.end()

    def npu_smi(self, *argv: str) -> subprocess.CompletedProcess[str]:
        command = [str(ENGINE / "npu-smi"), *argv]
        environment = {**os.environ, "SIM_ROOT": str(self.root)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=False)


def eventually(what: str, condition: Any, timeout: float = 10) -> None:
    """Waits until `condition()` holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
