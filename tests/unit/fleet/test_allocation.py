"""No device, port or name is given twice, and no machine gives what it does not have."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.fleet.allocation import allocate, problems
from fleetctl.fleet.schema import Inventory
from tests.unit.fleet.build import inventory, values


def test_machines_come_in_joining_order_and_indexes_count_within_them() -> None:
    found = [instance.id for instance in allocate(inventory())]
    assert found == [f"{machine}/{index}" for machine in (69, 68, 67, 66) for index in range(4)]


def with_override(override: dict[str, object]) -> Inventory:
    tree = values()
    tree["machines"][2]["instances"] = override
    return Inventory.model_validate(tree)


def test_a_machine_with_two_dead_npus_runs_three_instances_on_the_others() -> None:
    found = with_override({"devices": [0, 1, 2, 3, 4, 5]})
    assert problems(found) == []
    own = [instance for instance in allocate(found) if instance.machine == 67]
    assert [instance.devices for instance in own] == [(0, 1), (2, 3), (4, 5)]
    assert [instance.port for instance in own] == [8000, 8001, 8002]


def test_blocks_follow_the_list_where_a_dead_npu_is_in_the_middle() -> None:
    own = [i for i in allocate(with_override({"devices": [7, 6, 5, 3, 2, 0]})) if i.machine == 67]
    assert [instance.devices for instance in own] == [(7, 6), (5, 3), (2, 0)]


def test_a_machine_may_run_fewer_instances_or_none() -> None:
    for count in (0, 1, 3):
        found = with_override({"per_machine": count})
        assert problems(found) == []
        assert len([i for i in allocate(found) if i.machine == 67]) == count


def test_asking_for_more_than_the_listed_devices_is_a_problem() -> None:
    found = problems(with_override({"per_machine": 4, "devices": [0, 1, 2, 3, 4, 5]}))
    assert [problem.path for problem in found] == [("machines", 2, "instances")]
    assert "would need 8 devices (4 instances of 2) and there are 6" in found[0].message


def test_a_fleet_without_an_instance_is_a_problem() -> None:
    tree = values()
    for machine in tree["machines"]:
        machine["instances"] = {"per_machine": 0}
    assert [p.message for p in problems(Inventory.model_validate(tree))] == ["no machine runs an instance"]


overrides = st.fixed_dictionaries(
    {},
    optional={
        "per_machine": st.integers(0, 9),
        "devices": st.lists(st.integers(-1, 9), max_size=9),
    },
)
inventories = st.builds(
    lambda ids, hosts, per_machine, size, capacity, port, listen, changes: Inventory.model_validate(
        {
            **values(),
            "source": ids[0],
            "accelerator": {"devices": capacity},
            "instances": {"name": "i-{index}", "per_machine": per_machine, "devices": size, "port": port},
            "machines": [
                {"id": machine, "address": f"10.0.0.{host}", "instances": change}
                for machine, host, change in zip(ids, hosts, changes, strict=False)
            ],
            "balancer": {"machine": ids[0], "listen": listen, "state_listen": listen + 1},
        }
    ),
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(1, 6), min_size=5, max_size=5),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 65535),
    st.integers(1, 65534),
    st.lists(overrides, min_size=5, max_size=5),
)


@given(inventories)
def test_without_problems_no_device_port_or_name_is_given_twice(found: Inventory) -> None:
    instances = allocate(found)
    if problems(found):
        return
    capacity = found.accelerator.devices
    assert instances
    for key in ("id", "address"):
        assert max(Counter(getattr(one, key) for one in instances).values()) == 1
    assert max(Counter((one.machine, one.name) for one in instances).values()) == 1
    assert max(Counter((one.host, device) for one in instances for device in one.devices).values()) == 1
    for one in instances:
        assert len(one.devices) == found.instances.devices
        assert all(0 <= device < capacity for device in one.devices)
        assert 1 <= one.port <= 65535
    balancer = found.balancer
    taken = {one.port for one in instances if one.machine == balancer.machine}
    assert not {balancer.listen, balancer.state_listen} & taken


@given(inventories)
def test_sharing_anything_is_always_a_problem(found: Inventory) -> None:
    instances = allocate(found)
    devices = Counter((one.host, device) for one in instances for device in one.devices)
    addresses = Counter(one.address for one in instances)
    short = any(len(one.devices) < found.instances.devices for one in instances)
    if short or max((*devices.values(), *addresses.values(), 0)) > 1:
        assert problems(found)
