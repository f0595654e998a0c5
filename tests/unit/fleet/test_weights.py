"""What is wrong with a model's weights, from headers and index alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.fleet.fleet import Overrides
from fleetctl.fleet.lint import WEIGHT_RULES, Finding, Severity, lint_config, lint_weights
from fleetctl.fleet.reference import document
from fleetctl.fleet.rules.weights import LFS_POINTER, LOADED_BY, MAX_HEADER, MTP, Index, Shard, Weights
from tests.unit.fleet.build import fleet, with_engine

HEADER = 800
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shard(path: str, *tensors: str, extra: int = 0) -> Shard:
    places = {name: (number * 10, number * 10 + 10) for number, name in enumerate(tensors)}
    return Shard(path, 8 + HEADER + 10 * len(tensors) + extra, HEADER, places)


def placed(*places: tuple[int, int], size: int = 40) -> Shard:
    return Shard("x.safetensors", 8 + HEADER + size, HEADER, {f"t{n}": place for n, place in enumerate(places)})


def index(shards: dict[str, str] | None, total: int | None = None, path: str = LOADED_BY) -> Index:
    return Index(path, shards, total)


WHOLE = Weights(
    (shard(ONE, "model.a", "model.b"), shard(TWO, "mtp.fc.weight")),
    (index({"model.a": ONE, "model.b": ONE, "mtp.fc.weight": TWO}, 30),),
)


def found(weights: Weights) -> list[Finding]:
    return lint_weights(fleet(), weights)


def rules(weights: Weights) -> list[str]:
    return [finding.rule for finding in found(weights)]


def only(weights: Weights, rule: str) -> str:
    """The one message about `weights`, which has to be of `rule`."""
    (finding,) = found(weights)
    assert finding.rule == rule
    return finding.message


def damaged(one: Shard) -> str:
    return next((f.message for f in found(Weights((one,))) if f.rule == "shard-damaged"), "")


def test_a_whole_checkpoint_has_nothing_wrong() -> None:
    assert found(WHOLE) == []


def test_a_short_shard_is_named_with_the_bytes_it_lacks() -> None:
    short = replace(WHOLE.shards[0], size=WHOLE.shards[0].size - 7)
    assert only(replace(WHOLE, shards=(short, WHOLE.shards[1])), "shard-damaged") == (
        f"{ONE} is 7 bytes short: 821 bytes, its header promises 828"
    )


def test_a_long_shard_is_named_with_the_bytes_it_has_too_many() -> None:
    assert "is 5 bytes too long" in damaged(shard("x.safetensors", "a", extra=5))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (Shard("x", 5, None), "is 5 bytes, which is no safetensors file"),
        (Shard("x", 134, LFS_POINTER), "git lfs pull"),
        (Shard("x", 1 << 30, 0), "begins with zeros"),
        (Shard("x", 1 << 30, MAX_HEADER + 1), "more than safetensors allows"),
        (Shard("x", 100, 200), "ends within its header, at least 108 bytes short"),
        (Shard("x", 100, 20, None, "has a header that is not JSON"), "has a header that is not JSON"),
        (placed((0, 20), (10, 40)), "overlap: t1 begins 10 bytes before"),
        (placed((0, 10), (20, 40)), "10 bytes that are no tensor's before t1"),
        (placed((5, 40)), "5 bytes that are no tensor's before t0"),
        (placed((0, 40), size=39), "is 1 bytes short"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(one: Shard, words: str) -> None:
    assert words in damaged(one)


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(-60, 60), st.randoms(use_true_random=False))
def test_contiguous_tensors_in_any_order_are_whole_and_no_other_size_is(sizes, change, random) -> None:  # type: ignore[no-untyped-def]
    places, position = [], 0
    for number, size in enumerate(sizes):
        places.append((f"t{number}", (position, position + size)))
        position += size
    random.shuffle(places)
    said = damaged(Shard("x", 8 + HEADER + position + change, HEADER, dict(places)))
    assert bool(said) == (change != 0)
    assert not change or str(abs(change)) in said or "ends within its header" in said


def test_a_shard_of_the_index_that_is_not_there_is_named() -> None:
    message = only(replace(WHOLE, shards=WHOLE.shards[:1]), "shard-missing")
    assert message == f"1 of the 2 shards in {LOADED_BY} are not there: {TWO}"


def test_a_shard_that_is_a_link_to_nothing_is_missing_once() -> None:
    assert TWO in only(replace(WHOLE, shards=WHOLE.shards[:1], dangling=(TWO,)), "shard-missing")
    assert "link to nothing" in only(replace(WHOLE, dangling=("extra.safetensors",)), "shard-missing")


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [((1, 2, 3), None), ((0, 1, 2), None), ((1, 3), "model-00002-of-00003"), ((2, 3), "model-00001-of-00003")],
)
def test_without_an_index_the_numbers_in_the_names_are_counted(numbers: tuple[int, ...], missing: str | None) -> None:
    weights = Weights(tuple(shard(f"model-{n:05}-of-00003.safetensors", f"mtp.{n}") for n in numbers))
    if missing is None:
        assert found(weights) == []
    else:
        assert f"1 of 3 shards are not there: {missing}" in only(weights, "shard-missing")


def test_a_name_that_promises_a_million_shards_is_answered_at_once() -> None:
    assert "99999 of 999999999 shards" in only(
        Weights((shard("m-1-of-999999999.safetensors", "mtp.a"),)), "shard-missing"
    )


def test_an_extra_shard_is_a_warning() -> None:
    extra = replace(WHOLE, shards=(*WHOLE.shards, shard("old.safetensors", "z")))
    assert [(f.rule, f.severity) for f in found(extra)] == [("shard-unlisted", Severity.WARNING)]


def test_a_tensor_that_its_shard_does_not_have_is_named() -> None:
    mixed = index({"model.a": ONE, "model.c": ONE, "mtp.fc.weight": TWO})
    assert only(replace(WHOLE, indexes=(mixed,)), "tensor-missing").endswith("puts there: model.c")


def test_another_total_size_is_a_warning() -> None:
    other = replace(WHOLE, indexes=(replace(WHOLE.indexes[0], total=31),))
    assert [(f.rule, f.severity) for f in found(other)] == [("index-total-size", Severity.WARNING)]


def test_an_index_that_cannot_be_read_is_an_error_and_lists_nothing_as_extra() -> None:
    assert rules(replace(WHOLE, indexes=(index(None),))) == ["index-unreadable"]


def test_no_weights_is_an_error_and_other_formats_are_a_note() -> None:
    assert rules(Weights()) == ["weights-missing"]
    (note,) = found(Weights(others=("a.gguf",)))
    assert (note.rule, note.severity) == ("weights-unchecked", Severity.NOTE)


def test_shards_without_numbers_and_index_cannot_be_counted() -> None:
    assert rules(Weights((shard("a.safetensors", "mtp.a"), shard("b.safetensors", "b")))) == ["weights-unchecked"]
    assert rules(Weights((shard("a.safetensors", "mtp.a"),))) == []


WITHOUT_MTP = Weights((shard("model.safetensors", "model.a"),))


def test_speculating_without_mtp_tensors_is_an_error() -> None:
    assert "no tensor of the model is an mtp one" in only(WITHOUT_MTP, "mtp-tensors-missing")


def test_without_speculation_or_with_another_method_no_mtp_tensors_are_needed() -> None:
    assert lint_weights(fleet().with_overrides(Overrides(tokens=0)), WITHOUT_MTP) == []
    assert lint_weights(fleet(speculative=None), WITHOUT_MTP) == []
    assert lint_weights(fleet(speculative__method="ngram"), WITHOUT_MTP) == []
    assert lint_weights(fleet(speculative__method="qwen3_5_mtp"), WITHOUT_MTP) != []


def test_mtp_tensors_that_the_index_hides_are_not_loaded() -> None:
    hidden = replace(WHOLE, indexes=(index({"model.a": ONE, "model.b": ONE}),))
    assert rules(hidden) == ["mtp-tensors-missing", "shard-unlisted"]
    assert TWO in found(hidden)[0].message
    # vLLM reads no index of another name, and loads every file then.
    assert rules(replace(hidden, indexes=(replace(hidden.indexes[0], path="quant.safetensors.index.json"),))) == [
        "shard-unlisted"
    ]


def test_mtp_tensors_are_not_missed_where_something_else_is_missing() -> None:
    gone = Weights((shard(ONE, "model.a"),), (index({"model.a": ONE, "mtp.a": TWO}),))
    assert rules(gone) == ["shard-missing"]


@pytest.mark.parametrize(
    "name", ["mtp.fc.weight", "model.mtp.layers.0.a", "model.mtp_layers.0.a", "model.mtp_block.0.a", "model.layers.61.eh_proj.weight"]
)  # fmt: skip
def test_the_mtp_head_is_known_by_the_names_of_several_families(name: str) -> None:
    assert MTP.search(name)
    assert not MTP.search(f"x{name.replace('mtp', 'mlp').replace('eh_proj', 'o_proj')}")


def test_an_awkward_name_is_shown_on_one_line() -> None:
    for name in ("two\nlines.safetensors", "a b", "\udcff", "\x1b[31m"):
        (message,) = [f.message for f in found(Weights((Shard(name, 1, None),)))]
        assert message.isprintable()
    assert damaged(Shard("模型.safetensors", 1, None)).startswith("模型.safetensors is 1 bytes")


def test_many_names_are_cut() -> None:
    weights = replace(WHOLE, indexes=(index({f"t{n}": f"s{n}.safetensors" for n in range(20)}),))
    message = next(f.message for f in found(weights) if f.rule == "shard-missing")
    assert message.endswith("s0.safetensors, s1.safetensors, s10.safetensors and 17 more")


def test_no_config_json_is_an_error_but_for_the_format_without_one() -> None:
    assert [f.rule for f in lint_config(fleet(), None)] == ["config-missing"]
    assert lint_config(with_engine(config_format="mistral"), None) == []


def test_every_rule_is_on_the_page() -> None:
    for rule in WEIGHT_RULES.values():
        assert f"| `{rule.id}` | {rule.severity.value} | {rule.reason} |" in document()
