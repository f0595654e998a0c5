"""Rules that need the model's own config.json, which is on the machines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.rules.engine import mapping
from fleetctl.fleet.rules.rule import Complaint

THOUSANDS = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def tokens(value: Any) -> int | None:
    """A number of tokens as vLLM reads it (`128k` is 128000, `128K` is 131072); None where it says none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value > 0 else None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", value) if isinstance(value, str) else None
    return int(float(found[1]) * THOUSANDS.get(found[2], 1)) if found else None


def read(text: str) -> dict[str, Any] | None:
    """config.json, None where it is not JSON of the expected shape."""
    try:
        config = json.loads(text)
    except ValueError:
        return None
    return config if isinstance(config, dict) else None


def max_model_len_vs_config(fleet: Fleet, config: dict[str, Any]) -> Iterator[Complaint]:
    """Beyond the model's own length vLLM refuses to start, unless rope scaling is overridden (row 0.26)."""
    wanted, own = tokens(fleet.engine.get("max-model-len")), _length(config)
    if wanted is None or own is None or wanted <= own:
        return
    if {"rope_scaling", "rope_parameters", "max_position_embeddings"} & _keys(fleet.engine.get("hf-overrides")):
        return
    message = f"{wanted} is more than the {own} of the model's config.json"
    yield Complaint("engine.max-model-len", message, f"max-model-len: {own}")


def _keys(overrides: Any) -> set[str]:
    found = mapping(overrides)
    return {*found, *mapping(found.get("text_config"))}


def _length(config: dict[str, Any]) -> int | None:
    """The longest context: max_position_embeddings times what YaRN and its like declare."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    own = text.get("max_position_embeddings") if text else None
    if isinstance(own, bool) or not isinstance(own, int):
        return None
    scaling = mapping(text.get("rope_scaling") or text.get("rope_parameters")) if text else {}
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if isinstance(factor, int | float) and factor > 1:
        return int((original if isinstance(original, int) else own) * factor)
    return own


def quantization_vs_config(fleet: Fleet, config: dict[str, Any], described: bool | None) -> Iterator[Complaint]:
    """`--quantization ascend` reads quant_model_description.json; without it the model loads as floats (row 0.12)."""
    if fleet.engine.get("quantization") == "ascend" and described is False:
        message = "quant_model_description.json is not beside the model's config.json"
        yield Complaint("engine.quantization", message, "copy the model again, with that file")


def media_domains_open(fleet: Fleet, config: dict[str, Any]) -> Iterator[Complaint]:
    """A vision model fetches whatever URL a user names, from inside the cluster network (section 1.3)."""
    visual = "vision_config" in config and fleet.engine.get("language-model-only") is not True
    if visual and fleet.engine.get("allowed-media-domains") is None:
        message = "instances fetch any image URL a user names, addresses of this network included"
        yield Complaint("engine.allowed-media-domains", message, "allowed-media-domains: [images.example.com]")
