"""Fail at once on dead, not on slow."""

from __future__ import annotations

import json

import pytest

from fleetctl.fleet.fleet import Fleet
from fleetctl.plan import gate
from fleetctl.plan.operation import Verdict

MODEL = "Qwen3.8-27B-W8A8"
NPU = """
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip                      | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
{chips}
| NPU     Chip              | Process id    | Process name       | Process memory(MB)    | Process id in container |
{rows}
"""


def npu(held: dict[int, int]) -> str:
    chips = "\n".join(
        f"| {i}     910B4               | OK            | 90.0                 40                      0    / 0                |\n"
        f"| 0                         | 0000:C{i}:00.0  | 0                    0    / 0                31000/ 65536            |"
        for i in range(8)
    )
    rows = "\n".join(
        f"| {i}       0                 | {held[i]}          | VLLM::Worker_TP0   | 28000                 | NA                      |"
        if i in held
        else f"| No running processes found in NPU {i}                                                     |"
        for i in range(8)
    )
    return NPU.format(chips=chips, rows=rows)


def look(**changed: str) -> str:
    """What gate.sh prints of an instance that serves on NPUs 4 and 5, with parts changed."""
    parts = {
        "unit": "ActiveState=active\nSubState=running\nResult=success\nNRestarts=0\nExecMainStatus=0",
        "container": "true abc 0",
        "health": "200",
        "models": json.dumps({"data": [{"id": MODEL}]}),
        "unauthorized": "401",
        "completion": json.dumps({"choices": [{}]}) + "\n200",
        "npu": npu({4: 101, 5: 102}),
        "pids": "PID\n100\n101\n102",
        **changed,
    }
    return "\n".join(f"@@fleetctl {name} 0\n{text}" for name, text in parts.items())


def judged(fleet: Fleet, text: str) -> tuple[Verdict, str]:
    judgement = gate.serving(fleet.on(67)[2], MODEL)(text)
    return judgement.verdict, judgement.words


def test_an_instance_that_answers_on_its_own_npus_passes(fleet: Fleet) -> None:
    assert judged(fleet, look())[0] is Verdict.PASS


def test_one_that_loads_is_waited_for(fleet: Fleet) -> None:
    verdict, words = judged(fleet, look(health="000", log="Loading safetensors checkpoint shards:  25%"))
    assert verdict is Verdict.PENDING
    assert "25%" in words


def test_a_failed_unit_is_dead(fleet: Fleet) -> None:
    verdict, words = judged(fleet, look(unit="ActiveState=failed\nResult=exit-code\nExecMainStatus=1"))
    assert verdict is Verdict.DEAD
    assert "exit 1" in words


def test_one_that_keeps_dying_is_dead(fleet: Fleet) -> None:
    judge = gate.serving(fleet.instances[0], fleet.inventory.model.name)
    states = [look(unit=f"ActiveState=active\nNRestarts={n}", health="000") for n in (3, 4, 5)]
    assert [judge(text).verdict for text in states] == [Verdict.PENDING, Verdict.PENDING, Verdict.DEAD]


def test_restarts_before_the_cause_was_mended_do_not_count(fleet: Fleet) -> None:
    assert judged(fleet, look(unit="ActiveState=active\nNRestarts=7"))[0] is Verdict.PASS


def test_a_fatal_log_line_is_dead(fleet: Fleet) -> None:
    assert judged(fleet, look(health="000", log="SystemError: get_arch returned NULL"))[0] is Verdict.DEAD


def test_a_server_with_another_name_is_dead(fleet: Fleet) -> None:
    assert judged(fleet, look(models=json.dumps({"data": [{"id": "other"}]})))[0] is Verdict.DEAD


def test_a_server_that_answers_without_a_key_is_dead(fleet: Fleet) -> None:
    assert judged(fleet, look(unauthorized="200"))[0] is Verdict.DEAD


def test_one_on_the_npus_of_another_is_dead(fleet: Fleet) -> None:
    verdict, words = judged(fleet, look(npu=npu({0: 101, 1: 102})))
    assert verdict is Verdict.DEAD
    assert "NPUs 0,1, 4,5 were due" in words


@pytest.mark.parametrize(
    "late",
    [
        {"models": ""},  # curl's limit: the server takes more than 5 s
        {"unauthorized": "000"},
        {"unauthorized": ""},
        {"pids": ""},  # Docker does not answer
        {"pids": "PID"},
        {"npu": npu({4: 101, 5: 102}).partition("| NPU     Chip")[0]},  # npu-smi was ended at its limit
    ],
)
def test_what_gives_no_answer_is_slow_and_not_dead(fleet: Fleet, late: dict[str, str]) -> None:
    assert judged(fleet, look(**late))[0] is Verdict.PENDING


@pytest.mark.parametrize("models", ['{"data": [1]}', '{"data": null}', '{"data": {"id": "x"}}', "[]", "<html>"])
def test_a_server_that_answers_something_else_is_dead_and_no_crash(fleet: Fleet, models: str) -> None:
    assert judged(fleet, look(models=models))[0] is Verdict.DEAD


def test_npus_are_free_only_when_npu_smi_says_so(fleet: Fleet) -> None:
    free = gate.devices_free(fleet.on(67)[2])
    assert free("").verdict is Verdict.PENDING
    assert free(npu({4: 7})).verdict is Verdict.PENDING


def test_drained_means_nothing_in_flight(fleet: Fleet) -> None:
    judge = gate.drained(fleet.on(67)[2])
    state = {"peers": [{"id": "67/2", "inflight": 3}]}
    assert judge(json.dumps(state)).words == "3 requests in flight"
    assert judge(json.dumps({"peers": [{"id": "67/2", "inflight": 0}]})).verdict is Verdict.PASS
    assert judge("").verdict is Verdict.PENDING
