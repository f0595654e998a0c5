"""The model is looked at where it comes from: a short or missing shard stops a command before anything changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetctl.fleet.lint import WEIGHT_RULES

from .conftest import Lab, a_lab
from .test_bad_input import untouched

MODEL = "/data/models/Qwen3.8-27B-W8A8"
SHARD = "model-00003-of-00005.safetensors"

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from a_lab(tmp_path_factory, "weights", "10.255.232", [69, 67])


@pytest.fixture
def kept(lab: Lab) -> Iterator[Lab]:
    """The lab's model may be damaged: it is put back afterwards, times included."""
    lab.on(69, f"cp -a {MODEL} /data/kept")
    yield lab
    lab.on(69, f"rm -rf {MODEL} && mv /data/kept {MODEL}")


def not_ready(lab: Lab, machine: int = 67) -> str:
    """What `add-machine` says when it refuses; nothing is changed on machine 67, nor a copy begun."""
    done = lab.run("add-machine", str(machine), "--yes", code=1)
    assert "not ready" in done.err
    assert "nothing was changed" in done.err
    assert untouched(lab, 67)
    assert lab.on(67, f"ls -d {MODEL}* 2>/dev/null || true") == ""
    return done.err


def found(lab: Lab) -> dict[str, str]:
    """What `check` finds in the weights: rule and message, all of them on the source."""
    listed = lab.run("check", "-o", "json", code=None).json["findings"]
    split = [(f["where"], *f["message"].partition(":")[::2]) for f in listed]
    ours = [(where, rule, message.strip()) for where, rule, message in split if rule in WEIGHT_RULES]
    assert {where for where, _, _ in ours} <= {"69"}
    return {rule: message for _, rule, message in ours}


def test_a_model_that_is_whole_has_nothing_wrong(lab: Lab) -> None:
    assert found(lab) == {}


def test_a_short_shard_is_named_with_what_it_lacks(kept: Lab) -> None:
    kept.on(69, f"truncate -s -1000 {MODEL}/{SHARD}")
    for machine in (67, 69):
        said = not_ready(kept, machine)
        assert f"69: error: model.path: {SHARD} is 1000 bytes short" in said
    assert untouched(kept, 69)
    assert set(found(kept)) == {"shard-damaged"}


def test_everything_that_is_wrong_with_the_weights_is_said_at_once(kept: Lab) -> None:
    kept.on(69, f"rm {MODEL}/{SHARD}; head -c 20 {MODEL}/model-00001-of-00005.safetensors >/tmp/head")
    kept.on(69, f"cat /tmp/head >{MODEL}/model-00001-of-00005.safetensors; rm {MODEL}/quant_model_description.json")
    said = not_ready(kept)
    assert f"1 of the 5 shards in model.safetensors.index.json are not there: {SHARD}" in said
    assert "model-00001-of-00005.safetensors ends within its header" in said
    assert "quant_model_description.json is not beside" in said


def test_shards_that_are_links_into_a_hub_are_whole_and_a_broken_one_is_named(kept: Lab) -> None:
    kept.on(
        69,
        f"mkdir /data/blobs && cd {MODEL} && for f in *.safetensors; do mv $f /data/blobs && ln -s /data/blobs/$f $f; done",
    )
    try:
        assert found(kept) == {}
        kept.on(69, f"mv /data/blobs/{SHARD} /data/blobs/elsewhere")
        assert f"not there: {SHARD}" in not_ready(kept)
    finally:
        kept.on(69, "rm -rf /data/blobs")
