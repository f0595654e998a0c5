"""model_headers under dash on a real folder: what it prints becomes the facts, whatever the files are called."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

from fleetctl.commands.script import Script
from fleetctl.fleet.lint import lint_weights
from fleetctl.fleet.rules.weights import MAX_HEADER, Weights
from fleetctl.lab import model
from fleetctl.observe import weights
from tests.unit.fleet.build import fleet
from tests.unit.weights_bed import checkpoint, header, safetensors

AWKWARD = [
    "a b.safetensors",
    'it\'s "so".safetensors',
    "two\nlines.safetensors",
    "模型.safetensors",
    "-rf $(id).safetensors",
]


def read(folder: Path, cap: int = MAX_HEADER) -> Weights:
    script = Script("model_headers", (str(folder), cap)).text
    done = subprocess.run(["dash", "-c", script], capture_output=True, check=True, timeout=60)
    assert done.stderr == b""
    return weights.parse(done.stdout.decode())


@pytest.mark.parametrize("name", AWKWARD)
def test_a_shard_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path, {name: ["a", "层.weight"]})
    found = read(tmp_path)
    assert [shard.path for shard in found.shards] == [name]
    assert found.shards[0].tensors == {"a": (0, 16), "层.weight": (16, 32)}
    assert found.shards[0].size == found.shards[0].end
    assert found.indexes[0].shards == {"a": name, "层.weight": name}
    assert found.indexes[0].total == 32


def test_a_name_that_is_not_utf8_is_no_reason_to_fail(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors"))).write_bytes(safetensors(["a"]))
    assert [os.fsencode(shard.path) for shard in read(tmp_path).shards] == [b"\xff.safetensors"]


def test_links_are_followed_as_hubs_store_shards(tmp_path: Path) -> None:
    checkpoint(tmp_path / "blobs", {"model.safetensors": ["a"]})
    snapshot = tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    for name in ("model.safetensors", "model.safetensors.index.json"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    (snapshot / "gone.safetensors").symlink_to("../../blobs/gone")
    (tmp_path / "model").symlink_to("snapshots/1")
    found = read(tmp_path / "model")
    assert [(shard.path, shard.tensors) for shard in found.shards] == [("model.safetensors", {"a": (0, 16)})]
    assert found.indexes[0].shards == {"a": "model.safetensors"}
    assert found.dangling == ("gone.safetensors",)


def test_folders_inside_are_read_and_hidden_ones_are_unfinished_downloads(tmp_path: Path) -> None:
    checkpoint(tmp_path / "more", {"x.safetensors": ["a"]})
    checkpoint(tmp_path / "._____temp", {"half.safetensors": ["a"]})
    found = read(tmp_path)
    assert [shard.path for shard in found.shards] == ["more/x.safetensors"]
    assert found.indexes[0].shards == {"a": "more/x.safetensors"}


def test_a_short_file_keeps_its_header_and_its_true_size(tmp_path: Path) -> None:
    whole = safetensors(["a", "b"])
    (tmp_path / "x.safetensors").write_bytes(whole[:-5])
    (shard,) = read(tmp_path).shards
    assert (shard.size, shard.end) == (len(whole) - 5, len(whole))


@pytest.mark.parametrize(
    "content", [b"", b"1234567", b"\xff" * 64, struct.pack("<Q", 1000) + b"{}", bytes(64), b"version https://git-lfs"]
)
def test_a_file_that_is_no_safetensors_file_says_its_size_and_no_tensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    (shard,) = read(tmp_path).shards
    assert (shard.size, shard.tensors) == (len(content), None)
    assert shard.header == (int.from_bytes(content[:8], "little") if len(content) >= 8 else None)


def test_a_header_longer_than_the_cap_is_named_and_not_printed(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(safetensors([f"layer.{number}" for number in range(100)]))
    (shard,) = read(tmp_path, cap=50).shards
    assert shard.header is not None
    assert shard.header > 50
    assert shard.tensors is None


def test_only_the_headers_are_read(tmp_path: Path) -> None:
    """30 GB, sparse: three gigabytes a shard, each with the header of a real one."""
    for number in range(10):
        text = json.dumps(header([f"model.layers.{number}.mlp.{i}.weight" for i in range(100)], 3 << 20)).encode()
        with (tmp_path / f"model-{number:05}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + 100 * (3 << 20))
    found = read(tmp_path)
    assert len(found.shards) == 10
    assert all(shard.size == shard.end for shard in found.shards)
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) < 1000


def test_other_formats_are_named(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "q4.gguf", "config.json"):
        (tmp_path / name).write_bytes(b"x")
    found = read(tmp_path)
    assert (found.others, found.shards, found.indexes) == (("pytorch_model.bin", "q4.gguf"), (), ())


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    script = Script("model_headers", (str(tmp_path / "none"), MAX_HEADER)).text
    assert subprocess.run(["dash", "-c", script], capture_output=True, check=False).returncode != 0


def test_the_labs_model_is_whole_and_a_cut_in_it_is_found(tmp_path: Path) -> None:
    model.make(tmp_path / "model", "Lab", layers=1)
    assert lint_weights(fleet(), read(tmp_path / "model")) == []
    shard = next((tmp_path / "model").glob("model-00003-of-*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1000)
    (finding,) = lint_weights(fleet(), read(tmp_path / "model"))
    assert finding.message.startswith(f"{shard.name} is 1000 bytes short")
