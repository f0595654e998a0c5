"""What the last words of an engine that does not start usually mean. Pure.

Signatures of vLLM and vLLM-Ascend as people have met them; the words say what to do, not what a stack trace says.
"""

from __future__ import annotations

import re

# The most certain first: a full disk or a held device also ends in "Engine core initialization failed".
KNOWN: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Errno 28", "a disk of the machine is full"),
    (r"npu-smi: command not found|npu-smi tool not found", "npu-smi and the driver are not mounted into the container"),
    (
        r"get_arch",
        "the driver's libraries are not seen in the container: the whole of accelerator.driver has to be mounted",
    ),
    (r"Cannot find option named 'Ascend", "the image is too old for this NPU (triton-ascend, CANN): a newer one"),
    (
        r"drvErr=87|ret is -80(05|20)\b|error code is 507(008|899)|\b507(008|899)\b",
        "its NPUs are held by another container or process, or mapped wrongly: npu-smi info on the machine",
    ),
    (
        r"Failed to infer device type|libatb\.so: cannot open",
        "CANN's environment is not set in the container: the image's own entrypoint or ENV sets it",
    ),
    (
        r"EL0009|Stream resources are insufficient|\b207008\b",
        "too many graphs are captured: cudagraph_mode FULL_DECODE_ONLY, or fewer capture sizes",
    ),
    (
        r"weights were not initialized from checkpoint",
        "the model's files lack tensors, often those of mtp after fine-tuning: fleetctl check",
    ),
    (
        r"exceeds varlen segment length",
        "speculation crashed the engine: fewer tokens (--mtp), or a newer image",
    ),
    (
        r"\b5070(14|34|35)\b|AclrtSynchronizeStreamWithTimeout",
        "a kernel on the NPU hung or crashed: if it comes again, another image; keep the plog folder for the vendor",
    ),
    (
        r"less than desired GPU memory utilization|out of memory|OutOfMemoryError",
        "too little free HBM: npu-smi info shows who holds it; else a lower gpu-memory-utilization or max-model-len",
    ),
    (r"No available shared memory broadcast block", "one of its workers hangs, or instances.shm_size is too small"),
    (r"unrecognized arguments|error: argument ", "this image does not know one of the engine's flags: fleetctl check"),
    (r"[Aa]ddress already in use|port is already allocated", "its port is taken by something else on the machine"),
    (r"Unable to find image|No such image|pull access denied", "the image is not on the machine"),
)
_KNOWN = tuple((re.compile(pattern), words) for pattern, words in KNOWN)


def known(log: str) -> str | None:
    """What is known to be behind these lines; None when they are not of the usual ones."""
    return next((words for pattern, words in _KNOWN if pattern.search(log)), None)
