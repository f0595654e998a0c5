"""What `model_headers` printed -> the weights of a model's folder. Pure; no answer raises."""

from __future__ import annotations

import base64
import json
import posixpath
import zlib
from typing import Any

from fleetctl.fleet.rules.weights import MAX_HEADER, Index, Shard, Weights

GZIP = 31  # zlib's number for the format
METADATA = "__metadata__"


def parse(text: str) -> Weights:
    """Lines of names and headers, both in base64; a line of any other form is not ours."""
    shards, indexes, dangling, others = [], [], [], []
    for line in text.split("\n"):
        match line.split(" "):
            case ["shard", name, size, length, packed] if size.isdigit():
                shards.append(_shard(_name(name), int(size), int(length) if length.isdigit() else None, packed))
            case ["index", name, packed]:
                indexes.append(_index(_name(name), packed))
            case ["dangling", name]:
                dangling.append(_name(name))
            case ["other", name]:
                others.append(_name(name))
            case _:
                continue
    shards.sort(key=lambda shard: shard.path)
    indexes.sort(key=lambda index: index.path)
    return Weights(tuple(shards), tuple(indexes), tuple(sorted(dangling)), tuple(sorted(others)))


def header(data: bytes) -> dict[str, tuple[int, int]] | str:
    """Begin and end of each tensor, or what is wrong with the header."""
    document = _json(data)
    if not isinstance(document, dict):
        return "has a header that is not JSON"
    found = {}
    for name, entry in document.items():
        if name == METADATA:
            continue
        match entry:
            case {"data_offsets": [int(begin), int(end)]} if _count(begin) and _count(end) and begin <= end:
                found[name] = (begin, end)
            case _:
                return f"has a header whose entry {name!r} is no tensor"
    return found


def _shard(path: str, size: int, length: int | None, packed: str) -> Shard:
    if length is None or length > MAX_HEADER or length + 8 > size:
        return Shard(path, size, length)
    data = _unpack(packed)
    if data is None or len(data) != length:
        return Shard(path, size, length, trouble="has a header that cannot be read from the disk")
    read = header(data)
    return Shard(path, size, length, trouble=read) if isinstance(read, str) else Shard(path, size, length, read)


def _index(path: str, packed: str) -> Index:
    data = _unpack(packed)
    document = _json(data) if data is not None else None
    if not isinstance(document, dict) or not isinstance(listed := document.get("weight_map"), dict):
        return Index(path, None)
    if not all(isinstance(file, str) for file in listed.values()):
        return Index(path, None)
    folder = posixpath.dirname(path)
    files = {file: posixpath.normpath(posixpath.join(folder, file)) for file in set(listed.values())}
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(path, {tensor: files[file] for tensor, file in listed.items()}, _total(total))


def _total(value: Any) -> int | None:
    """Some writers print it as 5.4e10."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 1 << 63 else None


def _count(number: int) -> bool:
    return not isinstance(number, bool) and 0 <= number < 1 << 63


def _name(word: str) -> str:
    """File names are bytes: what is not UTF-8 stays what it is."""
    try:
        return base64.b64decode(word).decode("utf-8", "surrogateescape")
    except ValueError:
        return word


def _unpack(packed: str) -> bytes | None:
    """None for what is not there, not gzip, cut off, or longer than a header may be."""
    stream = zlib.decompressobj(GZIP)
    try:
        data = stream.decompress(base64.b64decode(packed), MAX_HEADER + 1)
    except (ValueError, zlib.error):
        return None
    return data if stream.eof else None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
