"""The pure parts of the lab: what is computed from an inventory before a container starts."""

from __future__ import annotations

import io
import json
import shlex
import stat
import struct
import tarfile
from pathlib import Path

import pytest
import yaml

from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.lint import Severity, lint, lint_config, lint_weights
from fleetctl.fleet.schema import Inventory
from fleetctl.lab import (
    credentials,
    disks,
    faults,
    images,
    inventory,
    lab,
    layout,
    machines,
    model,
    tiny_model,
    vllm_cpu,
    workloads,
)
from fleetctl.lab.engines import CHANGES, Engine
from fleetctl.observe import weights

SHIPPED = Path(__file__).parents[3] / "inventory.yaml"
PORTS = {69: 22069, 68: 22068, 67: 22067, 66: 22066}


def report_fleet(**changes: object) -> Fleet:
    document = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    document.update(changes)
    return Fleet(Inventory.model_validate(document), SHIPPED)


def with_addresses(*addresses: str) -> Fleet:
    machines_ = [{"id": index + 1, "address": address} for index, address in enumerate(addresses)]
    balancer = {"machine": 1}
    return report_fleet(machines=machines_, balancer=balancer, source=1)


def old(fleet: Fleet, machine: int) -> tuple[workloads.Workload, ...]:
    return workloads.of(fleet.inventory, fleet.machines[machine])


# what machines ran before


def test_machine_66_ran_eight_services_that_hold_one_npu_each() -> None:
    found = old(report_fleet(), 66)
    assert [one.name for one in found] == [f"sd35-npu-{index}" for index in range(8)]
    assert [one.devices for one in found] == [(index,) for index in range(8)]
    assert all(one.unit and one.container and one.port == 0 for one in found)


@pytest.mark.parametrize("machine", [68, 67])
def test_machines_68_and_67_ran_minimax_on_the_first_port_of_the_fleet(machine: int) -> None:
    (found,) = old(report_fleet(), machine)
    assert (found.name, found.port, found.devices) == ("minimax-h3", 8000, tuple(range(8)))


def test_machine_69_ran_only_an_nginx_started_by_hand() -> None:
    fleet = report_fleet()
    assert old(fleet, 69) == ()
    assert workloads.by_hand(fleet.machines[69]) == (workloads.HandStarted(2219, "nginx"),)


def test_a_machine_without_anything_to_clean_ran_nothing() -> None:
    assert old(with_addresses("10.0.0.1"), 1) == ()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("minimax-h3*", ("minimax-h3",)),
        ("minimax-h3*.service", ("minimax-h3",)),
        ("redis", ("redis",)),
        ("sd-*", ("sd-0", "sd-1")),
        ("app[12]", ("app1",)),
        ("app?x", ("app0x",)),
        ("*", ()),
        ("; rm -rf /*", ()),
    ],
)
def test_a_pattern_stands_for_names_that_it_matches(pattern: str, expected: tuple[str, ...]) -> None:
    assert workloads.names(pattern, 2) == expected


def test_an_old_unit_runs_its_container_in_the_foreground() -> None:
    (found,) = old(report_fleet(), 68)
    start = next(line for line in workloads.unit_text(found).splitlines() if line.startswith("ExecStart="))
    assert "docker run --name minimax-h3 --privileged" in start
    assert " -d " not in start


# names and addresses


def test_the_network_is_the_24_of_the_addresses_and_its_gateway_is_no_machine() -> None:
    found = layout.subnet(with_addresses("10.1.2.1", "10.1.2.3"))
    assert (found.network, found.gateway) == ("10.1.2.0/24", "10.1.2.2")


@pytest.mark.parametrize("addresses", [("10.0.0.1", "10.0.1.1"), ("fd00::1",), ("10.0.0.255",)])
def test_addresses_that_no_lab_can_have_are_a_usage_error(addresses: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        layout.subnet(with_addresses(*addresses))


def test_everything_in_docker_carries_the_name_of_the_fleet() -> None:
    one = layout.Layout("other", Path("/x"))
    assert one.container(7) == "fleetctl-lab-other-7"
    assert one.network == "fleetctl-lab-other"
    assert one.label == "fleetctl.lab=other"


def test_a_lab_inventory_stands_for_the_lab_it_lies_in(tmp_path: Path) -> None:
    fleet = Fleet(report_fleet().inventory, tmp_path / "inventory.yaml")
    assert layout.default_folder(fleet) == tmp_path / ".lab" / "qwen38"
    layout.Record("qwen38", "x", PORTS, 2219, complete=True).write(tmp_path / layout.RECORD)
    assert layout.default_folder(fleet) == tmp_path


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = layout.Record("qwen38", "/x/inventory.yaml", PORTS, 2219, complete=True)
    record.write(tmp_path / "lab.json")
    assert layout.Record.read(tmp_path / "lab.json") == record


@pytest.mark.parametrize("text", ["", "[]", "{", '{"fleet": 1}'])
def test_a_record_that_cannot_be_read_is_a_lab_half_built(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab.json").write_text(text, encoding="utf-8")
    found = layout.Record.read(tmp_path / "lab.json")
    assert found is not None
    assert not found.complete


def test_a_taken_port_is_replaced_by_a_free_one() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert lab.free_port(port) != port


# the lab's inventory


def rendered(text: str, **access: object) -> dict[str, object]:
    given = inventory.Access(PORTS, Path("/lab/key"), **access)  # type: ignore[arg-type]  # user and jump by name
    document = yaml.safe_load(inventory.render(text, Path("inventory.yaml"), given, 2219))
    Inventory.model_validate(document)
    return document  # type: ignore[no-any-return]  # a mapping, as validated


def test_the_lab_inventory_is_the_fleets_with_other_ssh_addresses() -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    found = rendered(text)
    expected = yaml.safe_load(text)
    for machine in expected["machines"]:
        port = PORTS[machine["id"]]
        machine["ssh"] = {"host": "127.0.0.1", "port": port, "user": "root", "key": "/lab/key"}
    expected["balancer"]["public_url"] = "http://127.0.0.1:2219"
    assert found == expected


def test_comments_of_the_inventory_stay() -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    access = inventory.Access(PORTS, Path("/lab/key"))
    new = inventory.render(text, Path("inventory.yaml"), access, 2219)
    comments = [line for line in text.splitlines() if line.strip().startswith("#")]
    assert [line for line in new.splitlines() if line.strip().startswith("#")][1:] == comments


@pytest.mark.parametrize(
    "machine",
    [
        "- id: 69\n    address: 10.0.0.1\n    ssh:\n      host: far\n      # old\n      port: 7\n    # next\n",
        "- address: 10.0.0.1   # why\n    ssh: {host: far}\n    id: 69\n",
        "- {id: 69, address: 10.0.0.1}\n",
        "- {ssh: {host: far, port: 7}, id: 69, address: 10.0.0.1}\n",
        "- clean:\n      units: ['a*']\n    id: 69\n    address: 10.0.0.1\n",
        "-   id: 69\n      address: 10.0.0.1\n",
    ],
)
def test_ssh_is_replaced_or_added_however_the_machine_is_written(machine: str) -> None:
    head, rest = SHIPPED.read_text(encoding="utf-8").split("machines:\n")
    tail = rest[rest.index("balancer:") :]
    found = rendered(f"{head}machines:\n  {machine}{tail}")
    (only,) = found["machines"]  # type: ignore[misc]  # validated: a list of one mapping
    assert only["ssh"] == {"host": "127.0.0.1", "port": 22069, "user": "root", "key": "/lab/key"}
    assert (only["id"], only["address"]) == (69, "10.0.0.1")


def test_the_sudo_user_comes_through_a_jump_host() -> None:
    found = rendered(SHIPPED.read_text(encoding="utf-8"), user="ops", jump=69)
    by_id = {machine["id"]: machine["ssh"] for machine in found["machines"]}  # type: ignore[attr-defined]  # a list
    assert by_id[69] == {"host": "127.0.0.1", "port": 22069, "user": "ops", "key": "/lab/key"}
    assert by_id[67]["jump"] == {"host": "127.0.0.1", "port": 22069, "user": "ops", "key": "/lab/key"}
    assert "host" not in by_id[67]


def test_a_secret_kept_elsewhere_becomes_the_labs_own_variable() -> None:
    text = SHIPPED.read_text(encoding="utf-8").replace("    env: FLEET_API_KEY", "    command: pass show fleet")
    assert rendered(text)["secrets"] == {"api_key": {"env": "FLEET_API_KEY"}}


def with_real_engine(text: str) -> Fleet:
    given = inventory.Access(PORTS, Path("/lab/key"))
    new = inventory.render(text, Path("inventory.yaml"), given, 2219, CHANGES[Engine.VLLM_CPU])
    return Fleet(Inventory.model_validate(yaml.safe_load(new)), SHIPPED)


def test_a_real_engine_has_other_flags_and_one_instance_a_machine_and_nothing_else() -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    found = with_real_engine(text)
    assert found.engine == {
        **report_fleet().engine,
        "tensor-parallel-size": 1,
        "block-size": 32,
        "enforce-eager": True,
        "quantization": None,
    }
    assert not found.tokens
    assert [(one.id, one.devices) for one in found.instances] == [(f"{m}/0", (0,)) for m in (69, 68, 67, 66)]
    assert found.inventory.model.random_weights
    assert [finding for finding in lint(found) if finding.severity is Severity.ERROR] == []
    assert "random-weights" in {finding.rule for finding in lint(found)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tensor-parallel-size: 2", "tensor_parallel_size: 2"),
        ("dtype: bfloat16", "no-enforce-eager: true"),
        ("- id: 67\n", "- id: 67\n    instances: {per_machine: 3, devices: [0, 1, 2, 3, 4, 5]}\n"),
        ("speculative:\n  method: mtp\n  tokens: 4", "# speculative: none"),
    ],
)
def test_a_real_engine_has_its_flags_however_the_inventory_is_written(old: str, new: str) -> None:
    text = SHIPPED.read_text(encoding="utf-8")
    assert old in text
    found = with_real_engine(text.replace(old, new))
    assert found.engine["tensor-parallel-size"] == 1
    assert found.engine["enforce-eager"] is True
    assert len(found.instances) == 4
    assert not found.tokens


# what is made


def test_the_tiny_model_has_what_a_real_engine_and_our_own_checks_read(tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "m", "Qwen3.8-27B-W8A8")
    config = (tmp_path / "m/config.json").read_text(encoding="utf-8")
    fleet = with_real_engine(SHIPPED.read_text(encoding="utf-8"))
    assert lint_config(fleet, config, described=False) == []
    content = (tmp_path / "m/model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    read = weights.header(content[8 : 8 + length])
    assert isinstance(read, dict)
    shard = weights.Shard("model.safetensors", len(content), length, read)
    assert lint_weights(fleet, weights.Weights((shard,))) == []
    assert len(content) < 4 << 20
    # Every id that the model can say is a token, and every token has one id.
    tokenizer = json.loads((tmp_path / "m/tokenizer.json").read_text(encoding="utf-8"))
    ids = [*tokenizer["model"]["vocab"].values(), *(entry["id"] for entry in tokenizer["added_tokens"])]
    assert sorted(ids) == list(range(json.loads(config)["vocab_size"]))
    for first, second in tokenizer["model"]["merges"]:
        assert {first, second, first + second} <= tokenizer["model"]["vocab"].keys()


def test_the_tiny_model_is_the_same_everywhere(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tiny_model.make(tmp_path / name, "m")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


def test_a_real_engine_is_another_image_under_another_name_and_the_machines_are_the_same() -> None:
    simulated, real = (images.names("m", kind) for kind in Engine)
    assert (simulated.base, simulated.host, simulated.legacy) == (real.base, real.host, real.legacy)
    assert simulated.engine != real.engine
    assert simulated.engine_archive != real.engine_archive
    assert simulated.model != real.model


def test_the_engine_is_installed_with_its_requirements_but_those_it_does_not_need() -> None:
    metadata = (
        "Name: vllm-cpu\nRequires-Dist: regex\nRequires-Dist: fastapi[standard]<0.137.0,>=0.133.0\n"
        'Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"\n'
        'Requires-Dist: intel-openmp==2024.2.1; platform_machine == "x86_64"\n'
        "Requires-Dist: torchcodec>=0.14\nRequires-Dist: outlines_core==0.2.14\n"
        'Requires-Dist: pandas; extra == "bench"\n'
    )
    expected = [vllm_cpu.TORCH, "regex", "fastapi[standard]<0.137.0,>=0.133.0", "outlines_core==0.2.14"]
    assert vllm_cpu.requirements(metadata) == [*expected, *vllm_cpu.ALSO]


def test_the_package_is_known_by_the_name_that_the_engine_asks_for(tmp_path: Path) -> None:
    import importlib.metadata

    own = tmp_path / f"vllm_cpu-{vllm_cpu.VERSION}.dist-info"
    own.mkdir()
    (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {vllm_cpu.VERSION}\n")
    vllm_cpu.second_name(tmp_path)
    found = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions(path=[str(tmp_path)])}
    assert found == {"vllm-cpu": vllm_cpu.VERSION, "vllm": vllm_cpu.VERSION}


def test_no_fault_is_asked_of_a_real_engine(tmp_path: Path) -> None:
    fleet = report_fleet()
    record = layout.Record(fleet.name, "x", PORTS, 2219, complete=True, engine=Engine.VLLM_CPU)
    record.write(tmp_path / layout.RECORD)
    assert layout.Record.read(tmp_path / layout.RECORD) == record
    with pytest.raises(UsageError, match="vllm-cpu"):
        faults.fault(fleet, state_dir=tmp_path, words=["engine", "67/0", "hang"])


def test_the_model_is_valid_in_form_and_has_an_mtp_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "ROWS", 8)
    monkeypatch.setattr(model, "COLUMNS", 8)
    model.make(tmp_path / "m", "Qwen3.8-27B-W8A8")
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text(encoding="utf-8"))
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) >= 4
    assert any(name.startswith("mtp.") for name in index["weight_map"])
    for shard in shards:
        content = (tmp_path / "m" / shard).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        del header["__metadata__"]
        assert set(header) == {name for name, file in index["weight_map"].items() if file == shard}
        assert max(entry["data_offsets"][1] for entry in header.values()) == len(content) - 8 - length
    for name in ("config.json", "quant_model_description.json", "tokenizer.json", "tokenizer_config.json"):
        json.loads((tmp_path / "m" / name).read_text(encoding="utf-8"))
    assert not (tmp_path / "m.new").exists()


def test_the_model_weighs_at_least_256_mib() -> None:
    assert len(model.tensor_names()) * model.ROWS * model.COLUMNS >= 256 << 20


def test_a_recipe_is_named_by_names_modes_and_contents(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "a").write_text("1", encoding="utf-8")
    first = images.fingerprint(recipe)
    (recipe / "__pycache__").mkdir()
    (recipe / "__pycache__/a.pyc").write_text("1", encoding="utf-8")
    assert images.fingerprint(recipe) == first
    (recipe / "a").chmod(0o755)
    second = images.fingerprint(recipe)
    (recipe / "a").write_text("2", encoding="utf-8")
    assert len({first, second, images.fingerprint(recipe)}) == 3


def test_a_machine_gets_its_keys_with_the_modes_that_sshd_wants() -> None:
    fleet = report_fleet()
    machine = fleet.machines[69]
    pair = credentials.key_pair()
    plan = machines.Plan(
        machine=machine,
        ssh_port=22069,
        balancer_port=2219,
        host_key=pair,
        disks=(),
        old=(),
        by_hand=workloads.by_hand(machine),
        holds_image=True,
        holds_model=True,
    )
    with tarfile.open(fileobj=io.BytesIO(machines.files(fleet, plan, "ssh-ed25519 AAAA\n"))) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
    assert entries["etc/ssh/ssh_host_ed25519_key"].mode == 0o600
    assert entries["home/ops/.ssh/authorized_keys"].uid == machines.OPS
    assert entries["usr/local/sbin/npu-smi"].mode == 0o755
    assert "opt/by-hand/2219.conf" in entries


def test_private_files_are_never_readable_by_others(tmp_path: Path) -> None:
    credentials.write_private(tmp_path / "keys" / "k", b"secret")
    assert stat.S_IMODE((tmp_path / "keys" / "k").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_a_host_key_is_known_by_port_and_by_cluster_address() -> None:
    text = credentials.known_hosts({69: (22069, "10.0.0.1", "ssh-ed25519 AAAA")})
    assert text == "[127.0.0.1]:22069 ssh-ed25519 AAAA\n10.0.0.1 ssh-ed25519 AAAA\n"


def test_what_is_mounted_below_a_folder_comes_innermost_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "a b"
    escaped = str(base).replace(" ", "\\040")
    table = tmp_path / "mounts"
    table.write_text(
        f"/dev/loop0 {escaped}/data ext4 rw 0 0\n"
        f"overlay {escaped}/data/deep/er overlay rw 0 0\n"
        f"tmpfs {escaped}-other/x tmpfs rw 0 0\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(disks, "MOUNTS", table)
    assert disks.mounted(base) == [base / "data/deep/er", base / "data"]


# words


def test_env_is_quoted_for_the_shell(tmp_path: Path) -> None:
    fleet = report_fleet()
    place = tmp_path / "it's a lab"
    where = layout.Layout(fleet.name, place)
    layout.Record(fleet.name, "x", PORTS, 2219, complete=True).write(where.record)
    credentials.write_private(where.api_key, b"sk-1\n")
    lines = lab.env(fleet, state_dir=place).splitlines()
    words = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    assert words == {
        "FLEETCTL_INVENTORY": f"{place}/inventory.yaml",
        "FLEET_API_KEY": "sk-1",
        "FLEET_URL": "http://127.0.0.1:2219",
    }


def test_env_without_a_lab_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not up"):
        lab.env(report_fleet(), state_dir=tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("reboot",),
        ("explode", "67"),
        ("reboot", "65"),
        ("reboot", "67/0"),
        ("slow", "67"),
        ("slow", "67", "fast"),
        ("slow", "67", "1mbit; reboot"),
        ("disk-full", "67", "root"),
        ("engine", "67/0"),
        ("engine", "67/0", "explode"),
        ("engine", "balancer", "hang"),
        ("npu", "67", "health"),
        ("npu", "67", "health", "x", "Warning"),
    ],
)
def test_a_fault_that_means_nothing_is_a_usage_error_before_anything_is_touched(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    fleet = report_fleet()
    layout.Record(fleet.name, "x", PORTS, 2219, complete=True).write(tmp_path / layout.RECORD)
    with pytest.raises(UsageError):
        faults.fault(fleet, state_dir=tmp_path, words=words)


def test_fault_help_lists_every_kind() -> None:
    text = faults.fault(report_fleet(), state_dir=Path("/nowhere"), words=["help"])
    assert all(kind in text for kind in faults._KINDS)


def test_a_lab_whose_folder_is_gone_is_removed_by_down_and_named_by_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody emptied /tmp while it ran: no inventory of its own is left to name."""
    mine = layout.Layout("demo", tmp_path / "mine")
    monkeypatch.setattr("fleetctl.lab.docker.labelled", lambda *_: ["x"])

    def comes_from(folder: Path) -> None:
        item = {"Config": {"Labels": {layout.FOLDER_LABEL: str(folder)}}}
        monkeypatch.setattr("fleetctl.lab.docker.inspect", lambda *_: [item])

    comes_from(tmp_path / "gone")
    with pytest.raises(UsageError, match="its folder is gone"):
        lab._refuse_foreign(mine)
    lab._refuse_foreign(mine, orphans=False)
    comes_from(tmp_path)
    for orphans in (True, False):
        with pytest.raises(UsageError, match="is up already"):
            lab._refuse_foreign(mine, orphans=orphans)


def test_the_port_of_a_machine_that_is_off_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be switched on again while another lab's machine listened there."""
    item = {"HostConfig": {"PortBindings": {"22/tcp": [{"HostIp": "127.0.0.1", "HostPort": "22067"}], "80/tcp": None}}}
    monkeypatch.setattr("fleetctl.lab.docker.labelled", lambda *_: ["x"])
    monkeypatch.setattr("fleetctl.lab.docker.inspect", lambda *_: [item])
    assert lab._promised() == {22067}
    assert lab.free_port(22067, lab._promised()) != 22067
