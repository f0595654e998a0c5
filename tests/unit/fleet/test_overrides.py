"""What a release may change from the command line is checked as the inventory is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import UsageError
from fleetctl.fleet.overrides import overrides, setting


def test_values_are_read_as_in_the_inventory() -> None:
    assert setting("engine.max_num_seqs=16") == ("max-num-seqs", 16)
    assert setting("engine.dtype=auto") == ("dtype", "auto")
    assert setting("engine.dtype=") == ("dtype", None)
    assert setting("engine.compilation-config={cudagraph_mode: FULL}") == (
        "compilation-config",
        {"cudagraph_mode": "FULL"},
    )
    assert setting("engine.chat-template=a=b") == ("chat-template", "a=b")


def test_overrides_are_sorted_so_that_the_same_release_is_the_same_value() -> None:
    one = overrides(5, "a/b:c", ["engine.seed=1", "engine.dtype=auto"])
    assert one == overrides(5, "a/b:c", ["engine.dtype=auto", "engine.seed=1"])
    assert not overrides(None, None, [])


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        overrides(16, "--privileged", ["engine.port=1", "engine.x", "engine.enforce-eager=on", "engine.y=[", "fleet=z"])
    for part in (
        "--mtp 16: expected a whole number from 0 to 15",
        '--image: "--privileged" is not an image reference',
        "engine.port: the program computes this flag",
        "--set engine.x: expected engine.KEY=VALUE",
        "--set engine.enforce-eager: YAML reads on as true",
        "--set engine.y: not valid YAML",
        "--set fleet=z: expected engine.KEY=VALUE",
    ):
        assert part in str(caught.value)


def test_one_flag_is_not_set_twice() -> None:
    with pytest.raises(UsageError, match=r"engine.max-num-seqs: given twice"):
        overrides(None, None, ["engine.max-num-seqs=1", "engine.max_num_seqs=2"])


@given(st.text(max_size=30))
def test_any_text_is_a_setting_or_a_usage_error(text: str) -> None:
    for word in (text, f"engine.{text}", f"engine.seed={text}"):
        try:
            overrides(None, None, [word])
        except UsageError as error:
            assert str(error)
