"""What the lab's image of a real engine puts in front of it: NPUs are held by processes that outlive the exec."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl.lab.layout import VLLM_CPU
from fleetctl.observe.npu_smi import parse_info

from .engine_bed import ENGINE, Bed, eventually

PROGRAM = "import os, sys, time; print(os.getpid(), *sys.argv[1:], flush=True); time.sleep(60)"


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    bed = Bed(tmp_path)
    image = tmp_path / "image"
    shutil.copytree(VLLM_CPU, image)
    shutil.copytree(ENGINE / "simvllm", image / "simvllm")
    (image / "program").write_text(PROGRAM)
    return bed


def start(bed: Bed, *words: str, devices: str = "2,3") -> subprocess.Popen[str]:
    argv = [sys.executable, str(bed.root / "image/vllm"), *words]
    environment = bed.environment(ASCEND_RT_VISIBLE_DEVICES=devices)
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def held(bed: Bed) -> dict[int, list[str]]:
    npus = parse_info(bed.npu_smi("info").stdout).npus
    return {npu.id: [process.name for process in npu.processes] for npu in npus if npu.processes}


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_its_npus_are_held_as_long_as_the_program_lives(bed: Bed, end: signal.Signals) -> None:
    with start(bed, "serve", "/models/m", "--port", "8000") as process:
        assert first_line(process) == f"{process.pid} serve /models/m --port 8000"
        assert held(bed) == {2: ["lab-npu-holder0"], 3: ["lab-npu-holder1"]}
        process.send_signal(end)
        assert process.wait(10) == -end
        eventually("devices are free", lambda: held(bed) == {})


def test_an_npu_that_another_holds_ends_it_before_the_program(bed: Bed) -> None:
    with start(bed, "serve", "m") as first:
        first_line(first)
        second = start(bed, "serve", "m", devices="3,4")
        out, _ = second.communicate(timeout=10)
        assert second.returncode == 1
        assert "aclrtSetDevice(3)" in out
        assert held(bed) == {2: ["lab-npu-holder0"], 3: ["lab-npu-holder1"]}
        first.kill()


@pytest.mark.parametrize("words", [("serve", "--help=all"), ("serve", "-h"), ("bench", "serve"), ("--version",)])
def test_nothing_is_held_by_what_does_not_serve(bed: Bed, words: tuple[str, ...]) -> None:
    with start(bed, *words) as process:
        assert first_line(process).endswith(" ".join(words))
        assert held(bed) == {}
        process.kill()


def test_a_host_of_all_interfaces_is_no_call_for_help(bed: Bed) -> None:
    with start(bed, "serve", "m", "--host", "0.0.0.0") as process:
        first_line(process)
        assert sorted(held(bed)) == [2, 3]
        process.kill()
