"""What an instance on Ascend NPUs needs of `docker run`: the one part that another accelerator replaces.

Device ids follow facts/ascend-vllm.md 1.4: a privileged container sees every NPU, so the ids are the host's; a
container with mapped devices numbers them from 0. They are computed, never typed.
"""

from __future__ import annotations

from fleetctl.fleet.instance import Instance
from fleetctl.fleet.schema import Accelerator, DeviceMode

MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


def device(index: int) -> str:
    return f"/dev/davinci{index}"


def visible(accelerator: Accelerator, instance: Instance) -> str:
    """The value of ASCEND_RT_VISIBLE_DEVICES, such as `2,3` (privileged) or `0,1` (mapped)."""
    mapped = accelerator.device_mode is DeviceMode.MAPPED
    ids = range(len(instance.devices)) if mapped else instance.devices
    return ",".join(str(i) for i in ids)


def run_arguments(accelerator: Accelerator, instance: Instance) -> list[str]:
    """Arguments of `docker run` for the instance's devices, driver and environment."""
    argv: list[str] = []
    if accelerator.device_mode is DeviceMode.PRIVILEGED:
        argv += ["--privileged", "-e", f"ASCEND_VISIBLE_DEVICES={visible(accelerator, instance)}"]
    else:
        for node in (*map(device, instance.devices), *MANAGERS):
            argv += ["--device", node]
    argv += ["-e", f"ASCEND_RT_VISIBLE_DEVICES={visible(accelerator, instance)}"]
    for source in mounts(accelerator):
        argv += ["--mount", f"type=bind,src={source},dst={source},readonly"]
    return argv


def mounts(accelerator: Accelerator) -> tuple[str, ...]:
    """Host paths that have to exist before a container starts."""
    return (str(accelerator.dcmi), str(accelerator.npu_smi), str(accelerator.driver))


def nodes(accelerator: Accelerator) -> tuple[str, ...]:
    """Device nodes that a machine has to have."""
    return (*(device(i) for i in range(accelerator.devices)), *MANAGERS)
