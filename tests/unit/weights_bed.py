"""Safetensors files and indexes for tests: bytes, and folders with them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TENSOR = 16  # bytes of each tensor below


def header(tensors: Iterable[str], size: int = TENSOR) -> dict[str, Any]:
    """A header with tensors of `size` bytes, one behind the other."""
    entries = {
        name: {"dtype": "I8", "shape": [size], "data_offsets": [number * size, (number + 1) * size]}
        for number, name in enumerate(tensors)
    }
    return {"__metadata__": {"format": "pt"}, **entries}


def prefixed(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def safetensors(tensors: Iterable[str]) -> bytes:
    """A whole file."""
    names = list(tensors)
    text = json.dumps(header(names), ensure_ascii=False).encode()
    return prefixed(text + b" " * (-len(text) % 8)) + bytes(TENSOR * len(names))


def checkpoint(folder: Path, shards: dict[str, list[str]], index: str | None = "model.safetensors.index.json") -> None:
    """Shards and the index that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in shards.items():
        (folder / name).write_bytes(safetensors(tensors))
    if index is not None:
        listed = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        document = {"metadata": {"total_size": TENSOR * len(listed)}, "weight_map": listed}
        (folder / index).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
