"""A plan says which flags change, not only that some do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleetctl.balancer import peers
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.plan.context import Context

from .test_expand import context, whole


def reason(fleet: Fleet, wanted: Fleet) -> str:
    """Why 67/2 is changed, of a fleet that runs as `fleet` and is to run as `wanted`."""
    ctx: Context = context(wanted, whole(fleet), tuple(fleet.machines), peers=peers.of(fleet, {}, fleet.machines))
    return ctx.comparisons["67/2"].reason


def edited(fleet: Fleet, **changed: Any) -> Fleet:
    return Fleet(fleet.inventory.model_copy(update=changed), fleet.path)


def test_flags_are_said_with_their_values(fleet: Fleet) -> None:
    engine = {**fleet.inventory.engine, "max-num-seqs": 16, "seed": 7}
    engine.pop("dtype")
    assert reason(fleet, edited(fleet, engine=engine)) == "--max-num-seqs 32 -> 16, without --dtype, new --seed 7"


def test_tokens_are_said_once_and_before_the_flags(fleet: Fleet) -> None:
    assert reason(fleet, fleet.with_overrides(Overrides(tokens=5))) == "mtp 4 -> 5"
    both = Overrides(tokens=5, engine=(("max-num-seqs", 16),))
    assert reason(fleet, fleet.with_overrides(both)) == "mtp 4 -> 5, --max-num-seqs 32 -> 16"


def test_another_image_is_named(fleet: Fleet) -> None:
    assert reason(fleet, fleet.with_overrides(Overrides(image="quay.io/x:2"))) == f"image {fleet.image} -> quay.io/x:2"


def test_of_the_environment_only_names_are_said(fleet: Fleet) -> None:
    settings = fleet.inventory.instances.model_copy(
        update={"env": {**fleet.inventory.instances.env, "HCCL_BUFFSIZE": "1024", "HF_TOKEN": "hf_abcdefghijkl"}}
    )
    assert reason(fleet, edited(fleet, instances=settings)) == "another -e HCCL_BUFFSIZE, new -e HF_TOKEN"


def test_many_differences_are_counted(fleet: Fleet) -> None:
    engine = {
        **fleet.inventory.engine,
        "seed": 1,
        "swap-space": 4,
        "max-num-seqs": 8,
        "block-size": 64,
        "dtype": "float16",
    }
    assert reason(fleet, edited(fleet, engine=engine)).endswith(", and 1 more")


@pytest.mark.parametrize("text", ["", "# fleet=qwen38 instance=67/2 spec=000000000000 text=0\n[Unit]\n"])
def test_where_the_unit_is_not_what_runs_nothing_is_guessed(fleet: Fleet, text: str) -> None:
    wanted = edited(fleet, engine={**fleet.inventory.engine, "seed": 7})
    facts = whole(fleet)
    path = "/etc/systemd/system/qwen38-tp2-2.service"
    facts[67] = replace(facts[67], unit_texts={**facts[67].unit_texts, path: text})
    found = context(wanted, facts, tuple(fleet.machines)).comparisons["67/2"]
    assert found.reason == "its flags, mounts or devices differ"
