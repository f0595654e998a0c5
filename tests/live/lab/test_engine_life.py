"""How the simulated engine holds devices, falls ill and ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from pathlib import Path

import pytest

from fleetctl.observe.npu_smi import NpuProcess, parse_info, parse_mapping

from .engine_bed import KEY, MODEL, MTP, Bed, Engine, eventually

LONG = {"max_tokens": 100_000, "ignore_eos": True}


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def holders(bed: Bed) -> dict[int, tuple[NpuProcess, ...]]:
    return {npu.id: npu.processes for npu in parse_info(bed.npu_smi("info").stdout).npus if npu.processes}


def begin(engine: Engine, **fields: object) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A streamed completion whose first tokens are here."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go on"}], "stream": True, **fields}
    connection = engine.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    return connection, answer


def test_one_process_a_device_holds_it_by_name_and_gives_it_back(bed: Bed) -> None:
    with bed.serving(devices="6,7"):
        held = holders(bed)
        assert sorted(held) == [6, 7]
        assert [len(processes) for processes in held.values()] == [1, 1]
        assert {process.name for row in held.values() for process in row} == {"VLLM::Worker_TP"}
        used = {npu.id: npu.hbm_used_mb for npu in parse_info(bed.npu_smi("info").stdout).npus}
        assert used[6] is not None and used[6] > 50_000
        assert used[0] is not None and 2_800 < used[0] < 3_500
    assert holders(bed) == {}


def test_a_killed_engine_leaves_no_worker_behind(bed: Bed) -> None:
    with bed.serving() as engine:
        engine.process.kill()
        eventually("devices are free", lambda: holders(bed) == {})


def test_sigterm_aborts_what_is_in_flight_and_ends_with_status_0(bed: Bed) -> None:
    with bed.serving(SIM_TOKENS_PER_SECOND="60") as engine:
        connection, answer = begin(engine, **LONG)
        engine.process.send_signal(signal.SIGTERM)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
        connection.close()
        assert engine.end() == 0
        assert "Shutdown initiated (timeout=0)" in engine.log


def test_a_shutdown_timeout_lets_a_request_finish_and_takes_no_new_one(bed: Bed) -> None:
    with bed.serving("--shutdown-timeout", "20", SIM_TOKENS_PER_SECOND="300") as engine:
        connection, answer = begin(engine, max_tokens=150, ignore_eos=True)
        engine.process.send_signal(signal.SIGTERM)
        engine.until("Shutdown initiated (timeout=20)")
        with pytest.raises(ConnectionRefusedError):
            engine.ask("GET", "/health")
        assert answer.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        assert engine.end() == 0


def test_a_shutdown_timeout_that_passes_aborts(bed: Bed) -> None:
    with bed.serving("--shutdown-timeout", "1", SIM_TOKENS_PER_SECOND="60") as engine:
        connection, _ = begin(engine, **LONG)
        engine.process.send_signal(signal.SIGTERM)
        assert engine.end() == 0
        assert "aborting 1 requests" in engine.log
        connection.close()


def test_late_release_holds_the_devices_after_serving_has_ended(bed: Bed) -> None:
    with bed.serving(SIM_LATE_RELEASE_SECONDS="30") as engine:
        (bed.faults / str(engine.port)).write_text("late-release")
        engine.process.send_signal(signal.SIGTERM)
        engine.until("Application shutdown complete.")
        assert sorted(holders(bed)) == [0, 1]
        engine.process.kill()


@pytest.mark.parametrize("status", [0, 1])
def test_the_engines_death_ends_the_server_with_the_faults_status(bed: Bed, status: int) -> None:
    with bed.serving() as engine:
        (bed.root / "run/fault").write_text(f"exit{status}\n")
        assert engine.end() == status
        assert "EngineCore encountered a fatal error" in engine.log


def test_a_worker_that_dies_takes_the_server_with_it_at_status_0(bed: Bed) -> None:
    with bed.serving() as engine:
        pid = holders(bed)[0][0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert engine.end() == 0
        assert "Worker proc VllmWorker-0 died unexpectedly" in engine.log


def test_a_hang_leaves_health_green_metrics_frozen_and_ends_with_the_fault(bed: Bed) -> None:
    with bed.serving() as engine:
        fault = bed.faults / str(engine.port)
        engine.chat("hello", max_tokens=4)
        fault.write_text("hang")
        connection = engine.connect()

        def stuck() -> bool:
            before = engine.metric("vllm:generation_tokens_total")
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stream": True}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {KEY}"})
            connection.sock.settimeout(0.3)
            try:
                connection.getresponse().read()
            except TimeoutError:
                return engine.metric("vllm:generation_tokens_total") == before
            return False

        eventually("a completion is stuck", stuck)
        assert engine.ask("GET", "/health")[0] == 200
        assert engine.metric("vllm:num_requests_running") == 0
        connection.close()
        fault.unlink()
        assert engine.chat("hello", max_tokens=4)["usage"]["completion_tokens"] == 4


def test_unhealthy_answers_503(bed: Bed) -> None:
    with bed.serving() as engine:
        (bed.faults / str(engine.port)).write_text("unhealthy")
        eventually("503", lambda: engine.ask("GET", "/health")[0] == 503)


def test_wrong_answers_and_garbled_text_fail_a_canary(bed: Bed) -> None:
    with bed.serving() as engine:
        fault = bed.faults / str(engine.port)

        def said() -> str:
            return str(engine.chat("What is 17+25?")["choices"][0]["message"]["content"])

        assert "42" in said()
        fault.write_text("wrong-answers")
        eventually("43", lambda: "43" in said())
        fault.write_text("garbled")
        eventually("no sum at all", lambda: "17 + 25" not in said() and "42" not in said())


def test_mtp0_stops_acceptance_and_slows_decoding(bed: Bed) -> None:
    accepted = "vllm:spec_decode_num_accepted_tokens_total"
    with bed.serving(*MTP) as engine:
        engine.chat("hello", max_tokens=200, ignore_eos=True)
        rate = engine.metric(accepted) / engine.metric("vllm:spec_decode_num_draft_tokens_total")
        assert 0.2 < rate < 0.8
        (bed.faults / str(engine.port)).write_text("mtp0")

        def stopped() -> bool:
            before = engine.metric(accepted)
            engine.chat("hello", max_tokens=40, ignore_eos=True)
            return engine.metric(accepted) == before

        eventually("nothing is accepted", stopped)


def test_an_idle_engine_costs_next_to_nothing(bed: Bed) -> None:
    with bed.serving(*MTP) as engine:
        status = Path(f"/proc/{engine.process.pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0])
        assert resident < 30_000
        ticks = _ticks(engine.process.pid)
        time.sleep(2)
        assert (_ticks(engine.process.pid) - ticks) / os.sysconf("SC_CLK_TCK") < 0.5


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_npu_smi_shows_injected_health_hidden_memory_and_missing_cards(bed: Bed) -> None:
    (bed.settings / "health-1").write_text("Alarm\n")
    (bed.settings / "hbm-2").write_text("40000")
    (bed.settings / "absent-3").touch()
    (bed.root / "dev/davinci4").unlink()
    npus = {npu.id: npu for npu in parse_info(bed.npu_smi("info").stdout).npus}
    assert sorted(npus) == [0, 1, 2, 5, 6, 7]
    assert (npus[0].health, npus[1].health) == ("OK", "Alarm")
    assert (npus[2].hbm_used_mb or 0) > 40_000 and npus[2].processes == ()
    assert "Alarm" in bed.npu_smi("info", "-t", "health", "-i", "1").stdout
    assert bed.npu_smi("info", "-t", "health", "-i", "3").returncode != 0


def test_npu_smi_answers_its_sub_commands(bed: Bed) -> None:
    (bed.root / "dev/davinci0").unlink()
    mapping = [row for row in parse_mapping(bed.npu_smi("info", "-m").stdout) if row.logic_id is not None]
    assert [(row.npu, row.logic_id) for row in mapping] == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6)]
    assert "HBM Capacity(MB)               : 65536" in bed.npu_smi("info", "-t", "usages", "-i", "1").stdout
    assert "No process in device." in bed.npu_smi("info", "-t", "proc-mem", "-i", "1").stdout
    with bed.serving():
        assert "Process memory(MB):56893" in bed.npu_smi("info", "-t", "proc-mem", "-i", "1").stdout
    (bed.driver / "version.info").write_text("Version=25.2.0\n")
    assert parse_info(bed.npu_smi("info").stdout).version == "25.2.0"


def test_npu_smi_answers_in_time(bed: Bed) -> None:
    with bed.serving():
        bed.npu_smi("info")
        began = time.monotonic()
        bed.npu_smi("info")
        assert time.monotonic() - began < 0.5
