"""The names people have at hand, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.targets import machines, names, resolve, words
from tests.unit.fleet.build import fleet, values


@pytest.mark.parametrize(
    "word", ["67/2", "67:8002", "10.255.254.67:8002", "67/qwen38-tp2-2", "67/qwen38-tp2-2.service"]
)
def test_an_instance_has_all_these_names(word: str) -> None:
    found = resolve(fleet(), [word])
    assert [one.id for one in found.instances] == ["67/2"]
    assert (found.machines, found.balancer) == ((), False)


def test_every_name_of_every_instance_leads_to_it() -> None:
    for shape in (fleet(), with_ipv6()):
        for instance in shape.instances:
            for name in names(instance):
                assert resolve(shape, [name]).instances == (instance,)


def with_ipv6() -> Fleet:
    tree = values()
    tree["machines"][1]["address"] = "fd00::68"
    return fleet(machines=tree["machines"])


def test_an_ipv6_backend_is_named_as_the_access_log_shows_it() -> None:
    assert resolve(with_ipv6(), ["[fd00::68]:8003"]).instances[0].id == "68/3"


def test_a_machine_is_all_its_instances() -> None:
    found = resolve(fleet(), ["67"])
    assert [one.id for one in found.instances] == ["67/0", "67/1", "67/2", "67/3"]
    assert found.machines == (67,)
    assert resolve(fleet(), ["10.255.254.67"]) == found


def test_targets_come_once_and_in_fleet_order_however_they_are_typed() -> None:
    found = resolve(fleet(), ["66:8001", "67", "67/2", "69/0", "balancer", "69/0"])
    assert [one.id for one in found.instances] == ["69/0", "67/0", "67/1", "67/2", "67/3", "66/1"]
    assert found.machines == (67,)
    assert found.balancer


def test_all_is_every_instance_and_not_the_balancer() -> None:
    found = resolve(fleet(), [], all=True)
    assert len(found.instances) == 16
    assert found.machines == (69, 68, 67, 66)
    assert not found.balancer


def test_all_together_with_a_name_and_no_name_at_all_are_refused() -> None:
    with pytest.raises(UsageError, match="--all and 67/2 together"):
        resolve(fleet(), ["67/2"], all=True)
    with pytest.raises(UsageError, match="no target named"):
        resolve(fleet(), [])


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("67/9", "67/"),
        ("balancr", "balancer"),
        ("67:8009", "67:800"),
        ("10.255.254.67:8022", "10.255.254.67:8002"),
        ("67/qwen38-tp2-9", "67/qwen38-tp2-"),
    ],
)
def test_an_unknown_name_offers_the_nearest(word: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf'no machine or instance "{word}" in fleet qwen38; did you mean "{near}'):
        resolve(fleet(), [word])


def test_a_name_like_no_other_gets_the_list_of_machines() -> None:
    with pytest.raises(UsageError, match=r'no machine or instance "12" .*; its machines are 69, 68, 67, 66'):
        resolve(fleet(), ["12"])


def test_every_unknown_name_is_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(fleet(), ["67/0", "67/8", "zzzzzz"])
    assert "67/8" in str(caught.value)
    assert 'no machine or instance "zzzzzz" in fleet qwen38' in str(caught.value)


def test_a_name_without_its_machine_says_which_machines_have_it() -> None:
    with pytest.raises(UsageError, match=r'"qwen38-tp2-2" is on several machines; say which: 69/qwen38-tp2-2, 68/'):
        resolve(fleet(), ["qwen38-tp2-2"])
    tree = values()
    alone = fleet(machines=tree["machines"][:1])
    assert resolve(alone, ["qwen38-tp2-2"]).instances[0].id == "69/2"


def test_machines_take_machines_only() -> None:
    assert machines(fleet(), ["66", "10.255.254.69"]) == (69, 66)
    with pytest.raises(UsageError, match='no machine "67/2" in fleet qwen38; did you mean "67"'):
        machines(fleet(), ["67/2"])


def test_everything_completion_offers_resolves() -> None:
    for word in words(fleet()):
        assert resolve(fleet(), [word])


@given(st.text(max_size=30))
def test_any_other_word_is_a_usage_error(word: str) -> None:
    known = {*words(fleet()), *(name for one in fleet().instances for name in names(one))}
    if word not in known and not word.startswith("10.255.254."):
        with pytest.raises(UsageError):
            resolve(fleet(), [word])


@pytest.mark.parametrize(("word", "near"), [("76/1", "67/1"), ("86", "68")])
def test_two_digits_that_changed_places_are_offered_in_their_right_order(word: str, near: str) -> None:
    with pytest.raises(UsageError, match=f'did you mean "{near}"'):
        resolve(fleet(), [word])
