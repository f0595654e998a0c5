"""What the simulated engine refuses, and the lines by which an operator knows why."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from fleetctl.observe.npu_smi import parse_info

from .engine_bed import KEY, MTP, READY, Bed


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def failure(bed: Bed, *flags: str, status: int = 1, devices: str = "0,1", port: int = 0, **extra: str) -> str:
    engine = bed.start(*flags, devices=devices, port=port, **extra)
    assert engine.end() == status, engine.log
    assert READY not in engine.log
    return engine.log


def test_the_milestones_of_a_start_are_logged_in_order(bed: Bed) -> None:
    with bed.serving(*MTP) as engine:
        marks = (
            "simulator",
            "non-default args: {",
            "Loading safetensors checkpoint shards: 100% Completed | 4/4",
            "Graph capturing finished",
            READY,
        )
        places = [engine.log.index(mark) for mark in marks]
        assert places == sorted(places)


def test_a_key_in_argv_is_printed_and_one_in_the_environment_is_not(bed: Bed) -> None:
    with bed.serving("--api-key", "sk-in-argv") as engine:
        assert "'api_key': ['sk-in-argv']" in engine.log
        assert engine.ask("GET", "/v1/models", key="sk-in-argv")[0] == 200
    assert KEY not in engine.log


def test_mapped_devices_are_numbered_from_zero_and_host_ids_fail(tmp_path: Path) -> None:
    bed = Bed(tmp_path, devices=0)
    for number in (4, 5):
        (bed.root / f"dev/davinci{number}").touch()
    log = failure(bed, devices="4,5")
    assert "EE1001" in log
    assert "set ASCEND_RT_VISIBLE_DEVICES:4 error, input data rang[0-2)" in log
    assert "207004" in log
    with bed.serving(devices="0,1"):
        held = [npu.id for npu in parse_info(bed.npu_smi("info").stdout).npus if npu.processes]
    assert held == [4, 5]


def test_a_device_that_another_container_holds_fails(bed: Bed) -> None:
    with bed.serving(devices="2,3"):
        log = failure(bed, devices="3,4")
        assert "drvErr=87" in log
        assert "507899" in log
        with bed.serving(devices="4,5"):
            pass


def test_more_ranks_than_devices_fail(bed: Bed) -> None:
    assert "World size (2) is larger" in failure(bed, devices="0")


def test_a_missing_manager_node_fails(bed: Bed) -> None:
    (bed.root / "dev/devmm_svm").unlink()
    assert "507899" in failure(bed)


def test_without_npu_smi_or_driver_libraries_mtp_fails_and_plain_decoding_warns(bed: Bed) -> None:
    (bed.root / "usr/local/sbin/npu-smi").unlink()
    log = failure(bed, *MTP)
    assert "npu-smi tool not found." in log
    assert "get_arch" in log
    with bed.serving() as engine:
        assert "npu-smi tool not found." in engine.log


def test_without_driver_libraries_mtp_fails(bed: Bed) -> None:
    (bed.driver / "lib64/libdrvdsmi_host.so").unlink()
    assert "get_arch" in failure(bed, *MTP)


def test_a_missing_shard_fails(bed: Bed) -> None:
    (bed.model / "model-00003-of-00004.safetensors").unlink()
    assert "No such file or directory" in failure(bed)


@pytest.mark.parametrize("size", [0, 7, 40, -1])
def test_a_short_shard_fails(bed: Bed, size: int) -> None:
    shard = bed.model / "model-00002-of-00004.safetensors"
    shard.write_bytes(shard.read_bytes()[:size])
    assert "SafetensorError" in failure(bed)


def test_a_model_that_is_not_there_fails(bed: Bed) -> None:
    (bed.model / "config.json").unlink()
    assert "Invalid repository ID or local directory" in failure(bed)


def test_quantization_without_its_description_fails(bed: Bed) -> None:
    (bed.model / "quant_model_description.json").unlink()
    assert "Cannot find the config file for ascend" in failure(bed)


def test_a_context_longer_than_the_model_fails(bed: Bed) -> None:
    assert "greater than the derived max_model_len" in failure(bed, "--max-model-len", "262145")


@pytest.mark.parametrize("spec", ['{"method":"mtp"}', '{"method":"magic","num_speculative_tokens":1}'])
def test_a_wrong_speculative_configuration_fails(bed: Bed, spec: str) -> None:
    assert "ValueError" in failure(bed, "--speculative-config", spec)


def test_a_taken_port_fails(bed: Bed) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert "OSError: [Errno 98] Address already in use" in failure(bed, port=other.getsockname()[1])


def test_connections_are_refused_until_the_engine_is_ready(bed: Bed) -> None:
    engine = bed.start(SIM_LOAD_SECONDS="30")
    engine.until("Loading safetensors")
    with pytest.raises(ConnectionRefusedError):
        engine.ask("GET", "/health")
    engine.process.send_signal(signal.SIGTERM)
    assert engine.end() == 143


@pytest.mark.parametrize("status", [0, 1])
def test_an_engine_that_dies_while_loading_ends_with_the_faults_status(bed: Bed, status: int) -> None:
    (bed.root / "run/fault").write_text(f"exit{status}")
    assert "EngineCore failed to start." in failure(bed, status=status)
    assert not (bed.root / "run/fault").exists()


def test_slow_start_adds_to_the_loading_time(bed: Bed) -> None:
    (bed.root / "run/fault").write_text("slow-start\n")
    engine = bed.start(SIM_SLOW_START_SECONDS="2.5")
    began = time.monotonic()
    engine.until(READY)
    assert time.monotonic() - began > 2.4
    engine.process.send_signal(signal.SIGTERM)
    assert engine.end() == 0
