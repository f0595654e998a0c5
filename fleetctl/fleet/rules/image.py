"""Rules about image and model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.rules.rule import Complaint, Severity, rule

# Suffixes of vllm-ascend tags, each for one generation of hardware (VA:docs/source/installation.md).
SUFFIXES = {"a2": "a2", "a3": "a3", "a5": "a5", "310p": "310p", "950dt": "a5"}
QUANTIZED = re.compile(r"\bw\d+a\d+\b|\bw\d+a\d+(?=[-_])", re.IGNORECASE)


def tag(reference: str) -> str:
    """The tag of a reference, empty where it has none."""
    return reference.partition("@")[0].rpartition("/")[2].partition(":")[2]


@rule("image-not-pinned", "0.14", Severity.WARNING)
def image_not_pinned(fleet: Fleet) -> Iterator[Complaint]:
    """A tag can move: two machines may run different content under one name."""
    if fleet.inventory.image.digest is None and "@sha256:" not in fleet.image:
        yield Complaint("image.digest", f"{fleet.image} is a name, not a content", "digest: sha256:...")


@rule("image-wrong-suffix", "1.1", Severity.ERROR)
def image_wrong_suffix(fleet: Fleet) -> Iterator[Complaint]:
    """An image built for another generation of Ascend hardware does not start."""
    soc = fleet.inventory.accelerator.soc
    last = tag(fleet.image).removesuffix("-openeuler").rpartition("-")[2]
    built = SUFFIXES.get(last)
    if built and built != soc:
        message = f"{fleet.image} is for {built.upper()}, the machines are {soc.upper()}"
        yield Complaint("image.reference", message, f"take the image for {soc.upper()}, or correct accelerator.soc")


@rule("image-wrong-platform", "1.1", Severity.ERROR)
def image_wrong_platform(fleet: Fleet) -> Iterator[Complaint]:
    """`vllm/vllm-openai` is the NVIDIA build; on Ascend it finds no device."""
    if re.search(r"(^|/)vllm/vllm-openai(:|@|$)", fleet.image):
        yield Complaint("image.reference", f"{fleet.image} is built for NVIDIA", "take a vllm-ascend image")


@rule("random-weights", "-", Severity.WARNING)
def random_weights(fleet: Fleet) -> Iterator[Complaint]:
    """Neither the canary nor `verify` would notice that a trained model serves rubbish."""
    if fleet.inventory.model.random_weights:
        message = "no answer is judged: not by the canary of a rollout, not by `fleetctl verify`"
        yield Complaint("model.random_weights", message, "leave it out for a model that was trained")


@rule("quantization-explicit", "0.12", Severity.WARNING)
def quantization_explicit(fleet: Fleet) -> Iterator[Complaint]:
    """Auto-detection needs quant_model_description.json: where that file is missing the weights load as floats."""
    model = fleet.inventory.model
    quantized = QUANTIZED.search(model.name.replace("_", "-")) or QUANTIZED.search(model.path.name.replace("_", "-"))
    if quantized and fleet.engine.get("quantization") is None:
        message = f"{model.name} is quantized and no flag says so"
        yield Complaint("engine.quantization", message, "quantization: ascend")
