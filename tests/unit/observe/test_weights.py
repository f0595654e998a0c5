"""Headers and indexes as they were printed become facts; nothing that a damaged file can hold raises."""

from __future__ import annotations

import base64
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.fleet.rules.weights import Index, Weights
from fleetctl.observe.weights import header, parse
from tests.unit.weights_bed import header as made

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("data_offsets"), inner, max_size=3),
    max_leaves=12,
)


def word(data: bytes | str) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def index(document: object) -> Index:
    printed = word(gzip.compress(json.dumps(document).encode()))
    return parse(f"index {word('sub/model.safetensors.index.json')} {printed}\n").indexes[0]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_a_reason(data: bytes) -> None:
    assert isinstance(header(data), dict | str)


@given(JSON)
def test_any_json_is_a_header_or_a_reason(document: object) -> None:
    found = header(json.dumps(document).encode())
    if isinstance(found, dict):
        assert all(0 <= begin <= end for begin, end in found.values())


@given(st.lists(st.text(min_size=1).filter(lambda name: name != "__metadata__"), unique=True, max_size=20))
def test_a_header_gives_every_tensor_its_place(names: list[str]) -> None:
    assert header(json.dumps(made(names, 4)).encode()) == {n: (i * 4, i * 4 + 4) for i, n in enumerate(names)}


@pytest.mark.parametrize(
    "entry", [None, [], {}, {"data_offsets": [0]}, {"data_offsets": [4, 0]}, {"data_offsets": [0, True]}, {"data_offsets": [-1, 0]},
              {"data_offsets": [0, 1.5]}, {"data_offsets": [0, 1 << 70]}, {"data_offsets": "01"}],
)  # fmt: skip
def test_an_entry_without_a_place_is_no_tensor(entry: object) -> None:
    found = header(json.dumps({"model.a": entry}).encode())
    assert isinstance(found, str)
    assert "model.a" in found


def test_an_endless_nesting_is_not_json() -> None:
    assert header(b"[" * 200_000) == "has a header that is not JSON"


@given(st.text(alphabet="shard index dangling other 0123456789-=+/AZaz\n", max_size=200))
def test_any_lines_are_an_answer(text: str) -> None:
    parse(text)


@given(JSON)
def test_any_json_is_an_index_or_none(document: object) -> None:
    index(document)
    index({"weight_map": document, "metadata": document})
    index({"weight_map": {}, "metadata": {"total_size": document}})


def test_an_index_names_shards_from_its_own_folder() -> None:
    found = index({"metadata": {"total_size": 5.4e10}, "weight_map": {"a": "x.safetensors", "b": "../y.safetensors"}})
    assert found.shards == {"a": "sub/x.safetensors", "b": "y.safetensors"}
    assert found.total == 54_000_000_000


def test_half_a_header_is_no_header() -> None:
    text = json.dumps(made(["a"])).encode()
    packed = gzip.compress(text)
    for cut in range(len(packed)):
        (shard,) = parse(f"shard {word('x')} 999 {len(text)} {word(packed[:cut])}").shards
        assert shard.tensors is None
        assert shard.trouble == "has a header that cannot be read from the disk"


def test_nothing_is_no_weights() -> None:
    assert parse("") == Weights()
