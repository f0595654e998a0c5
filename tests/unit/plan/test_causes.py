"""The cause of a failed start is said beside the log lines that show it."""

from __future__ import annotations

import pytest

from fleetctl.fleet.fleet import Fleet
from fleetctl.plan import causes
from fleetctl.plan.build import gate_operation
from fleetctl.plan.operation import Wait

from .test_expand import context, whole


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("SystemError: <built-in function get_arch> returned NULL", "accelerator.driver has to be mounted"),
        ("halGetDeviceInfo failed, deviceId=0 drvErr=87", "held by another container"),
        ("dcmi model initialized failed, because the device is used. ret is -8020", "held by another container"),
        ("aclrtSetDevice(2), error code is 507899", "held by another container"),
        ("ValueError: Free memory on device npu:0 is less than desired GPU memory utilization", "too little free HBM"),
        ("ValueError: Following weights were not initialized from checkpoint: {'mtp.fc'}", "lack tensors"),
        ("vllm serve: error: unrecognized arguments: --max-nun-seqs", "does not know one of the engine's flags"),
        ("EZ9999 error code is 507035", "a kernel on the NPU hung"),
        ("OSError: [Errno 98] Address already in use", "its port is taken"),
        ("OSError: [Errno 28] No space left on device", "disk of the machine is full"),
    ],
)
def test_what_people_have_met_before_is_told(line: str, said: str) -> None:
    assert said in (causes.known(f"INFO starting\n{line}\nRuntimeError: Engine core initialization failed") or "")


def test_what_nobody_knows_has_no_cause() -> None:
    assert causes.known("INFO 5070141 requests\nKeyError: 'x'") is None
    assert causes.known("") is None


def test_the_gate_explains_the_last_words(fleet: Fleet) -> None:
    gate = gate_operation(context(fleet, whole(fleet), (67,)), "gate", fleet.on(67)[0]).action
    assert isinstance(gate, Wait)
    assert gate.explain is causes.known
