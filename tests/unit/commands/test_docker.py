"""The container of an instance, as the report ran it with its faults mended."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.commands import ascend, docker, units
from fleetctl.commands.docker import Topology
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.fleet.schema import DeviceMode

NODES = Topology(("0-15", "16-31"))


def mapped(fleet: Fleet) -> Fleet:
    accelerator = fleet.inventory.accelerator.model_copy(update={"device_mode": DeviceMode.MAPPED})
    return replace(fleet, inventory=fleet.inventory.model_copy(update={"accelerator": accelerator}))


def test_0_11_privileged_containers_get_host_ids_and_mapped_ones_their_own(fleet: Fleet) -> None:
    instance = fleet.on(67)[2]
    assert ascend.visible(fleet.inventory.accelerator, instance) == "4,5"
    argv = ascend.run_arguments(fleet.inventory.accelerator, instance)
    assert "--privileged" in argv
    assert "--device" not in argv
    other = mapped(fleet)
    argv = ascend.run_arguments(other.inventory.accelerator, instance)
    assert ascend.visible(other.inventory.accelerator, instance) == "0,1"
    assert "--privileged" not in argv
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--device"][:2] == ["/dev/davinci4", "/dev/davinci5"]


def test_0_10_shared_memory_is_always_set(fleet: Fleet) -> None:
    argv = docker.run_arguments(fleet, fleet.instances[0], NODES)
    assert argv[argv.index("--shm-size") + 1] == "16g"


def test_0_22_docker_runs_in_the_foreground_so_that_systemd_supervises_it(fleet: Fleet) -> None:
    argv = docker.run_arguments(fleet, fleet.instances[0], NODES)
    assert not {"-d", "--detach", "-t", "--rm"} & set(argv)


def test_f31_ports_are_published_on_the_cluster_address_only(fleet: Fleet) -> None:
    argv = docker.run_arguments(fleet, fleet.on(68)[3], NODES)
    assert argv[argv.index("--publish") + 1] == "10.255.254.68:8003:8003"


def test_0_03_the_key_is_in_no_argument_and_in_no_environment(fleet: Fleet) -> None:
    argv = docker.run_arguments(fleet, fleet.instances[0], NODES)
    assert "--api-key" not in argv
    assert not any(word.startswith("VLLM_API_KEY=") for word in argv if word != docker.READ_KEY)


def test_0_16_instances_are_pinned_to_the_cpus_of_a_numa_node() -> None:
    assert docker.cpuset(NODES, 0, 4) == ("0,1,2,3,4,5,6,7", "0")
    assert docker.cpuset(NODES, 3, 4) == ("24,25,26,27,28,29,30,31", "1")
    assert docker.cpuset(Topology(("0-1",)), 2, 4) == ("0,1", "0")
    assert docker.cpuset(Topology(), 0, 4) is None


def test_the_spec_changes_with_the_tokens_of_a_release(fleet: Fleet) -> None:
    five = fleet.with_overrides(Overrides(tokens=5))
    one, other = (docker.run_arguments(f, f.instances[0], NODES) for f in (fleet, five))
    assert docker.spec(one) != docker.spec(other)
    assert docker.spec(one) == docker.spec(docker.run_arguments(fleet, fleet.instances[0], NODES))


def test_systemd_words_survive_percent_dollar_quotes_and_backslashes() -> None:
    assert units.systemd_word('{"a":1}') == '"{\\"a\\":1}"'
    assert units.systemd_word("100%") == "100%%"
    assert units.systemd_word("$HOME") == "$$HOME"
    assert units.systemd_word("a\\b c") == '"a\\\\b c"'
    assert units.systemd_word("") == '""'


def test_0_01_a_dead_engine_that_exits_zero_is_restarted_and_137_is_a_failure(fleet: Fleet) -> None:
    text, _ = units.instance(fleet, fleet.instances[0], NODES)
    assert "Restart=on-failure\nRestartSec=15" in text
    assert "RestartForceExitStatus=0 143\nSuccessExitStatus=143\n" in text
    assert "137" not in text.replace("137 must not be listed", "")


def test_0_02_docker_stop_waits_longer_than_the_engine_and_systemd_longer_than_docker(fleet: Fleet) -> None:
    text, _ = units.instance(fleet, fleet.instances[0], NODES)
    assert "-t 45 " in text
    assert "TimeoutStopSec=60" in text


def test_instances_come_back_with_docker_and_at_boot(fleet: Fleet) -> None:
    text, _ = units.instance(fleet, fleet.instances[0], NODES)
    assert "WantedBy=multi-user.target docker.service" in text
    assert "Requires=docker.service" in text


def test_0_27_the_balancer_waits_for_no_instance(fleet: Fleet) -> None:
    text = units.balancer(fleet, "/usr/sbin/nginx", 65536)
    assert "qwen38-tp2" not in text
    assert "LimitNOFILE=65536" in text
    assert "RestartSec=5" in text
