"""A machine is reached as `ssh` would reach it, except where the inventory says otherwise."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Jump, Machine, Ssh
from fleetctl.remote.ssh_config import SshConfig
from fleetctl.remote.target import SshTarget, targets

CONFIG = """
Host m67 10.255.254.67
  HostName 192.0.2.67
  User deploy
  Port 2222
  IdentityFile ~/.ssh/fleet
  IdentityFile /keys/second
Host behind
  ProxyJump outer,ops@inner:2200
Host inner
  HostName inner.example
  User nobody
  Port 99
Host outer
  ProxyJump gate
Host alone
  ProxyJump none
  ProxyCommand never
Host piped
  ProxyCommand nc -x proxy:1080 %h %p
  ProxyJump gate
Host v6
  ProxyJump root@[2001:db8::1]:2200
Host round
  ProxyJump about
Host about
  ProxyJump round
Host *
  HostKeyAlias every
  UserKnownHostsFile ~/a /b
  IdentitiesOnly yes
"""


def of(host: str, config: str = CONFIG, **ssh: object) -> SshTarget:
    machine = Machine(id=67, address="10.0.0.1", ssh=Ssh(host=host, **ssh))  # type: ignore[arg-type]
    return SshTarget.of(machine, SshConfig(config))


def test_ssh_config_fills_what_the_inventory_leaves_open() -> None:
    target = of("m67")
    assert (target.host, target.port, target.user) == ("192.0.2.67", 2222, "deploy")
    assert target.identities == (str(Path("~/.ssh/fleet").expanduser()), "/keys/second")
    assert target.identities_only
    assert target.becomes_root


def test_the_address_is_looked_up_when_there_is_no_ssh_host() -> None:
    assert SshTarget.of(Machine(id=67, address="10.255.254.67"), SshConfig(CONFIG)).host == "192.0.2.67"


def test_the_inventory_wins() -> None:
    target = of("m67", port=2022, user="root", key="/keys/own")
    assert (target.host, target.port, target.user, target.key) == ("192.0.2.67", 2022, "root", "/keys/own")


def test_known_hosts_and_alias_come_from_ssh_config() -> None:
    target = of("m67")
    assert target.known_hosts[:2] == (str(Path("~/a").expanduser()), "/b")
    assert target.host_key_name == "every"


def test_jump_hosts_are_walked_from_the_outside_with_their_own_options() -> None:
    hops = [(hop.user, hop.host, hop.port, hop.is_jump) for hop in of("behind", user="me").hops]
    local = of("gate").user
    assert hops == [
        (local, "gate", 22, True),
        (local, "outer", 22, True),
        ("ops", "inner.example", 2200, True),
        ("me", "behind", 22, False),
    ]


def test_a_jump_host_of_the_inventory_takes_the_place_of_ssh_configs() -> None:
    target = of("behind", jump=Jump(host="inner", user="ops"))
    first, last = target.hops
    assert (first.user, first.host, first.port) == ("ops", "inner.example", 99)
    assert last == target


def test_none_means_none() -> None:
    assert of("alone").jump is None
    assert of("alone").proxy_command is None


def test_the_first_of_two_ways_is_taken_and_filled_in() -> None:
    assert of("piped", port=2022).proxy_command == "nc -x proxy:1080 piped 2022"
    assert of("piped").jump is None


def test_ipv6_hops_are_read() -> None:
    assert of("v6").hops[0].address == "[2001:db8::1]:2200"


def test_a_host_does_not_jump_through_itself() -> None:
    config = "Host *\n  ProxyJump bastion\n"
    assert [hop.host for hop in of("m1", config).hops] == ["bastion", "m1"]


def test_a_circle_of_jump_hosts_is_an_error() -> None:
    with pytest.raises(UsageError, match="round -> about -> round"):
        of("round")


@pytest.mark.parametrize("config", ["Host x\n  User\n", "Match nonsense\n  User x\n", "Host *\n  Port many\n"])
def test_a_file_that_cannot_be_read_is_a_usage_error(config: str) -> None:
    with pytest.raises(UsageError):
        of("x", config)


def test_a_line_break_cannot_add_an_option() -> None:
    ssh = Ssh.model_construct(host="m67", user="x\n  ProxyCommand touch /tmp/owned", port=None, key=None, jump=None)
    with pytest.raises(UsageError, match="line break"):
        SshTarget.of(Machine(id=67, address="10.0.0.1", ssh=ssh), SshConfig(CONFIG))


def test_included_files_are_read_in_place(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10.conf").write_text("Host m67\n  Port 1\n")
    (tmp_path / "conf.d" / "20.conf").write_text("Host m67\n  Port 2\n  User included\n")
    (tmp_path / "config").write_text(
        "Host m67\n  HostName first\nInclude conf.d/*.conf\n  User own\nHost *\n  User last\n"
    )
    config = SshConfig.load(tmp_path / "config", tmp_path / "absent").text
    target = of("m67", config)
    assert (target.host, target.port, target.user) == ("first", 1, "included")
    assert of("m66", config).user == "last"


def test_a_file_that_includes_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Include config\n")
    with pytest.raises(UsageError, match="deeper"):
        SshConfig.load(tmp_path / "config", tmp_path / "absent")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here to compare with")
@pytest.mark.parametrize("host", ["m67", "10.255.254.67", "inner", "alone", "other"])
def test_ssh_itself_says_the_same(tmp_path: Path, host: str) -> None:
    (tmp_path / "config").write_text(CONFIG)
    text = subprocess.run(
        ["ssh", "-G", "-F", str(tmp_path / "config"), host], check=True, capture_output=True, text=True
    ).stdout
    said = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    target = of(host)
    assert (target.host, str(target.port), target.user) == (said["hostname"], said["port"], said["user"])
    assert said.get("proxyjump", "none") == "none"


def test_a_fleet_has_its_own_known_hosts_file(fleet: Fleet) -> None:
    all_targets = targets(fleet, SshConfig())
    assert [target.id for target in all_targets] == list(fleet.machines)
    file = fleet.path.resolve().parent / ".fleetctl" / f"{fleet.name}.known_hosts"
    assert {target.trust_file for target in all_targets} == {file}
    assert all(str(file) in target.known_hosts for target in all_targets)


def test_a_relative_key_starts_at_the_inventory(tmp_path: Path) -> None:
    machine = Machine(id=67, address="10.0.0.1", ssh=Ssh(key="keys/fleet"))
    assert SshTarget.of(machine, SshConfig(), base=tmp_path).key == str(tmp_path / "keys" / "fleet")


def test_what_to_type_to_look_oneself() -> None:
    target = SshTarget(67, "h", 2201, "root", key="/k", jump=SshTarget(67, "g", 22, "ops"))
    assert target.ssh_command == "ssh -J ops@g:22 -i /k -p 2201 root@h"
