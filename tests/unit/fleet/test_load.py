"""What a person is told about a wrong inventory: where, what, and what to write instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl.errors import InventoryError, UsageError
from fleetctl.fleet import load as loading
from fleetctl.fleet.load import find, load
from tests.unit.fleet.build import SHIPPED, TEXT, changed, heads, problems


def test_the_shipped_inventory_is_the_fleet_of_the_report() -> None:
    fleet = load(SHIPPED)
    assert fleet.name == "qwen38"
    assert [instance.address for instance in fleet.instances][:2] == ["10.255.254.69:8000", "10.255.254.69:8001"]
    assert len(fleet.instances) == 16
    assert [instance.devices for instance in fleet.on(67)] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_an_unknown_key_is_shown_with_its_line_a_caret_and_the_nearest_key(tmp_path: Path) -> None:
    text = changed(('      units: ["minimax-h3*"]', '      unitz: ["minimax-h3*"]'))
    line = text.splitlines().index('      unitz: ["minimax-h3*"]') + 1
    assert problems(tmp_path, text) == [
        f'inventory.yaml:{line}:7: machines[1].clean.unitz: unknown key; did you mean "units"?\n'
        '          unitz: ["minimax-h3*"]\n'
        "          ^"
    ]


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = changed(
        ("source: 69", "source: 70"),
        ("per_machine: 4", "per_machine: 5"),
        ("shm_size: 16g", "shm_size: 16 GB"),
        ("- id: 68", "- id: 67"),
        ("10.255.254.66", "127.0.0.1"),
        ("body_limit", "body_limt"),
        ("max_unavailable: 25%", "max_unavailable: lots"),
    )
    found = heads(tmp_path, text)
    assert [head.split(": ", 1)[1] for head in found] == [
        "source: machine 70 is not in machines (69, 67, 67, 66)",
        "instances.per_machine: machines 69, 67, 67, 66 would need 10 devices (5 instances of 2) and there are 8",
        'instances.shm_size: expected a size such as 16g or 512m, got "16 GB"',
        "machines[2].id: machine 67 is listed twice (also machines[1])",
        "machines[3].address: 127.0.0.1 is a loopback address: no other machine reaches a backend there",
        'balancer.body_limt: unknown key; did you mean "body_limit"?',
        'rollout.max_unavailable: expected a number of instances such as 2, or a share such as 25%, got "lots"',
    ]
    lines = [int(head.split(":")[1]) for head in found]
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  - id: 66", "  - {id: 66, adress: 10.0.0.1}\n  - id: 65", 'machines[3].adress: unknown key; did you mean "address"?'),
        ("fleet: qwen38", "fleet: Qwen 38", 'fleet: expected 1 to 31 lower-case letters, digits and dashes, got "Qwen 38"'),
        ("fleet: qwen38", "flet: qwen38", 'flet: unknown key; did you mean "fleet"?'),
        ("fleet: qwen38", "flet: qwen38", "fleet: required, but missing"),
        ("fleet: qwen38", "fleet: qwen38\nlisten: 80", 'listen: unknown key; did you mean "balancer.listen"?'),
        ("port: 8000 ", "port: 80000 ", "instances.port: must be at most 65535, got 80000"),
        ("port: 8000 ", "port: 65534 ", "instances.port: the last instance would listen on 65537; ports end at 65535"),
        ("port: 8000 ", "port: 2217 ", "balancer.listen: 2219 is also the port of instance 69/2"),
        ("state_listen: 2220", "state_listen: 2219", "balancer.state_listen: 2219 is also balancer.listen"),
        ("state_listen: 2220", "state_listen: 8003", "balancer.state_listen: 8003 is also the port of instance 69/3"),
        ("machine: 69", "machine: 70", "balancer.machine: machine 70 is not in machines (69, 68, 67, 66)"),
        ("10.255.254.68", "10.255.254.69", "machines[1].address: 10.255.254.69 is already the address of machine 69"),
        ("10.255.254.68", "0.0.0.0", "0.0.0.0 is no machine's address: write the one of the cluster network"),
        ("10.255.254.68", '"::1"', "::1 is a loopback address: no other machine reaches a backend there"),
        ("10.255.254.68", "host-68", 'expected an IP address of the cluster network, got "host-68"'),
        ("10.255.254.68", "10.255.254.068", 'expected an IP address of the cluster network, got "10.255.254.068"'),
        ("qwen38-tp2-{index}", "qwen38-tp2", "{index} in it"),
        ("devices: 8 ", 'devices: "8" ', 'expected a whole number, got the text "8"; write it without the quotes'),
        ("devices: 8 ", "devices: true ", "expected a whole number, got true"),
        ("devices: 8 ", "devices: 8.5 ", "expected a whole number, got the number 8.5"),
        ("devices: 8 ", "devices: ", "expected a whole number, got nothing"),
        ("devices: 8 ", "devices: [8] ", "expected a whole number, got a list"),
        ('"512"', "512", 'instances.env.HCCL_BUFFSIZE: expected text, got the number 512; quote it: "512"'),
        ("HCCL_BUFFSIZE", "HCCL-BUFFSIZE", "not the name of an environment variable"),
        ("HCCL_BUFFSIZE", "VLLM_API_KEY", "a key is given by secrets.api_key only"),
        ("affinity: md5-mod", "affinity: md5mod", 'did you mean "md5-mod"?'),
        ("device_mode: privileged", "device_mode: priviledged", 'did you mean "privileged"?'),
        ("connect_timeout: 2", "connect_timeout: -1", "balancer.connect_timeout: must be more than 0, got -1"),
        ("connect_timeout: 2", "connect_timeout: .inf", "balancer.connect_timeout"),
        ("path: /data/models/Qwen3.8-27B-W8A8", "path: models/x", 'expected an absolute path on the machine, got "models/x"'),
        ("path: /data/models/Qwen3.8-27B-W8A8", "path: /data/a,b", "must not hold a comma"),
        ("reference: quay.io/ascend/vllm-ascend:qwen3.8-a2", "reference: --privileged", "is not an image reference"),
        ("source: 69", "source: [69]", "source: expected a whole number, got a list"),
        ("dtype: bfloat16", "port: 80", "engine.port: the program computes this flag; write instances.port"),
        ("dtype: bfloat16", "no-host: true", "engine.no-host: the program computes this flag; leave it out"),
        ("dtype: bfloat16", "served_model_name: x", "the program computes this flag; write model.name"),
        ("dtype: bfloat16", "speculative-config: {method: mtp}", "write speculative.method and speculative.tokens"),
        ("dtype: bfloat16", "--seed: 1", 'write the flag without the leading dashes: "seed"'),
        ("dtype: bfloat16", "max_model_len: 1", "max-model-len and max_model_len are the same flag"),
        ("dtype: bfloat16", "dtype: bfloat15", "engine.dtype: expected one of"),
        ("max-num-seqs: 32", "max-num-seqs: many", 'engine.max-num-seqs: expected a whole number, got "many"'),
        ("max-num-seqs: 32", "max-num-seqs: 0", "engine.max-num-seqs: must be at least 1, got 0"),
        ("enable-auto-tool-choice: true", "enable-auto-tool-choice: 1", "expected true or false, got"),
        ('  - id: 67', '  - id: 67\n    instances: {devices: [0, 1, 1]}', "machines[2].instances.devices[2]: NPU 1 is listed twice"),
        ('  - id: 67', '  - id: 67\n    instances: {devices: [0, 8]}', "NPU 8 does not exist: a machine has NPUs 0 to 7"),
        ('  - id: 67', '  - id: 67\n    instances: {per_machine: 5}', "machine 67 would need 10 devices"),
        ("unit: openresty-qwen", "unit: qwen38-tp2-1", "qwen38-tp2-1 is also the name of instance 69/1"),
        ("affinity: md5-mod", 'weights: {"67": 2}', "md5-mod has no weights"),
        ("affinity: md5-mod", 'affinity: rendezvous\n  weights: {"70": 2}', '"70" is neither a machine nor an instance'),
        ("affinity: md5-mod", "trusted_proxies: [10.0.0.300]", "balancer.trusted_proxies[0]"),
        ("    env: FLEET_API_KEY", "    env: FLEET API KEY", "expected the name of an environment variable"),
        ("    env: FLEET_API_KEY", "    {}", "write exactly one of env, file and command (found none of them)"),
        ("    env: FLEET_API_KEY", "    env: A\n    file: b", "write exactly one of env, file and command (found env and file)"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_in_a_persons_words(tmp_path: Path, old: str, new: str, expected: str) -> None:
    found = heads(tmp_path, changed((old, new)))
    assert any(expected in head for head in found), found
    assert all(head.startswith("inventory.yaml:") and head.split(":")[1].isdigit() for head in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("enforce-eager: on", "YAML reads on as true; write true, or quote it"),
        ("enforce-eager: No", "YAML reads No as false; write false, or quote it"),
        ("seed: 010", "YAML reads 010 as the octal number 8; drop the zero, or quote it"),
        ("seed: 22:19", "YAML reads 22:19 as the number 1339 (base 60); quote it"),
        ("revision: 2026-01-31", 'YAML reads "2026-01-31" as a date; quote it'),
        ("revision: !!python/name:os.system x", "is not used here"),
        ("revision: !!binary aGk=", "!!binary is not used here"),
        ("seed: 1\n  seed: 2", "engine.seed: given twice (first in line "),
    ],
)
def test_yaml_that_reads_otherwise_than_it_looks_is_an_error(tmp_path: Path, text: str, expected: str) -> None:
    found = heads(tmp_path, changed(("dtype: bfloat16", text)))
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "inventory.yaml: is empty; docs/inventory.md lists every key"),
        ("# only a comment\n", "inventory.yaml: is empty; docs/inventory.md lists every key"),
        ("- a\n", "inventory.yaml:1:1: expected a mapping of keys, got a list"),
        ("words", 'inventory.yaml:1:1: expected a mapping of keys, got the text "words"'),
        ("a: [1,\n", "inventory.yaml:2:1: not valid YAML: "),
        ("a:\n\t- b\n", "; indent with spaces, not tabs"),
        ("a: b: c\n", "inventory.yaml:1:5: not valid YAML: mapping values are not allowed in this context"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ("a: \x00\n", "not valid YAML: control characters are not allowed"),
        (b"\x89PNG\r\n\x1a\n", "inventory.yaml: is not UTF-8 text (byte 0x89 in line 1)"),
        ("a: *nowhere\n", "found undefined alias"),
        ("&a [*a]", "an alias contains itself"),
        ("a: &a {b: *a}", "an alias contains itself"),
        ("a: " + "[" * 60 + "]" * 60, "nested more than 50 levels deep"),
        ("a: " + "[" * 300_000, "inventory.yaml:1:"),
        ("a: " + "x" * (5 << 20), "inventory.yaml: is larger than 1 MiB: not an inventory"),
        ("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
            f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
        ), "aliases make this file too large"),
        ("1: 2\n? [a]\n: b\n", "a key must be a word"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_inventory_is_said_to_be_none(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert any(expected in head for head in heads(tmp_path, text))


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="no such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(InventoryError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(InventoryError, match=r"cannot be read|no such file"):
        load(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    "change",
    [
        ("    env: FLEET_API_KEY", "    env: sk-abcdef0123456789"),
        ("  api_key:\n    env: FLEET_API_KEY", "  api_key: sk-abcdef0123456789"),
        ("  api_key:\n    env: FLEET_API_KEY", "  api_key: [sk-abcdef0123456789]"),
        ("  api_key:\n    env: FLEET_API_KEY", "  key: sk-abcdef0123456789"),
        ("    env: FLEET_API_KEY", "    enf: sk-abcdef0123456789"),
        ("    env: FLEET_API_KEY", "   env: sk-abcdef0123456789\n  x"),
        ("  dtype: bfloat16", "  api-key: sk-abcdef0123456789"),
        ("  dtype: bfloat16", "  api_key: [sk-abcdef0123456789]"),
        ('    HCCL_BUFFSIZE: "512"', "    VLLM_API_KEY: sk-abcdef0123456789"),
        ("fleet: qwen38", "fleet: sk-abcdef0123456789 x"),
    ],
)
def test_a_pasted_secret_is_refused_and_never_repeated(tmp_path: Path, change: tuple[str, str]) -> None:
    found = problems(tmp_path, changed(change))
    assert found
    assert "abcdef0123456789" not in "\n".join(found)


def test_a_secret_that_does_not_look_like_one_is_not_repeated_either(tmp_path: Path) -> None:
    for written in ("api_key: hunter22", "api_key: 12345678", "api_key: [hunter22, 12345678]"):
        found = problems(tmp_path, changed(("api_key:\n    env: FLEET_API_KEY", written)))
        assert found
        assert not any(secret in "\n".join(found) for secret in ("hunter22", "12345678"))
    found = problems(tmp_path, changed(("api_key:\n    env: FLEET_API_KEY", "api_key: hunter22")))
    assert "a secret never stands here; write env:, file: or command: under it" in found[0]


def test_the_caret_points_at_its_mark_below_chinese_text(tmp_path: Path) -> None:
    found = problems(tmp_path, changed(("body_limit: 50m", '"中文": 1')))
    assert any(problem.splitlines()[1:] == ['      "中文": 1', "      ^"] for problem in found)
    found = problems(tmp_path, "{中文: 1, b: 2}\n")
    assert any(problem.splitlines()[1:] == ["    {中文: 1, b: 2}", "              ^"] for problem in found)


def test_a_very_long_line_is_shown_as_a_window_around_the_mistake(tmp_path: Path) -> None:
    found = problems(tmp_path, "{" + "fleet: qwen38, " + "x" * 3000 + ": 1}\n")
    assert found
    assert all(len(line) < 400 for problem in found for line in problem.splitlines())


def test_anchors_and_merge_keys_may_be_used(tmp_path: Path) -> None:
    text = changed(
        ('clean:\n      units: ["minimax-h3*"]', 'clean: &old\n      units: ["minimax-h3*"]'),
        ('    clean:\n      units: ["sd35-npu-*"]', '    clean:\n      <<: *old\n      units: ["sd35-npu-*"]'),
    )
    path = tmp_path / "inventory.yaml"
    path.write_text(text.replace('      containers: ["sd35-npu-*"]\n', ""), encoding="utf-8")
    last = load(path).machines[66].clean
    assert (last.units, last.containers) == (("sd35-npu-*",), ("minimax-h3*",))


def test_a_mistake_in_a_merged_mapping_is_reported_once_where_it_stands(tmp_path: Path) -> None:
    text = changed(
        ('clean:\n      units: ["minimax-h3*"]', 'clean: &old\n      first: yes\n      units: ["minimax-h3*"]'),
        ('    clean:\n      units: ["sd35-npu-*"]', '    clean:\n      <<: *old\n      units: ["sd35-npu-*"]'),
    )
    line = text.splitlines().index("      first: yes") + 1
    assert {head.split(":")[1] for head in heads(tmp_path, text)} == {str(line)}


def test_windows_line_ends_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    assert problems(tmp_path, b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode()) == []


def test_ipv6_addresses_are_written_the_same_way_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(changed(("10.255.254.68", '"FD00:0:0::68"')), encoding="utf-8")
    assert load(path).on(68)[1].address == "[fd00::68]:8001"


def test_find_takes_the_named_file_then_the_variable_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(loading.VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"no inventory: there is no inventory.yaml"):
        find(None)
    (tmp_path / "inventory.yaml").touch()
    assert find(None) == Path("inventory.yaml")
    monkeypatch.setenv(loading.VARIABLE, "/elsewhere.yaml")
    assert find(None) == Path("/elsewhere.yaml")
    assert find(Path("named.yaml")) == Path("named.yaml")


def test_it_is_said_which_inventory_was_found_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(loading.VARIABLE, raising=False)
    (tmp_path / "inventory.yaml").touch()
    assert loading.origin() == "inventory.yaml (in this folder)"
    monkeypatch.setenv(loading.VARIABLE, "/elsewhere.yaml")
    assert loading.origin() == f"/elsewhere.yaml ({loading.VARIABLE})"
    assert loading.origin(Path("named.yaml")) == "named.yaml (-i)"
    monkeypatch.setenv(loading.VARIABLE, str(tmp_path / "lab/inventory.yaml"))
    assert loading.origin() == f"lab/inventory.yaml ({loading.VARIABLE})"


def test_loading_a_correct_inventory_imports_neither_lints_nor_the_wording_of_errors() -> None:
    script = (
        "import sys; from pathlib import Path; from fleetctl.fleet.load import load; load(Path('inventory.yaml')); "
        "print(*[m for m in sys.modules if m.startswith(('fleetctl.', 'difflib', 'unicodedata', 'subprocess'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=SHIPPED.parent,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    imported = set(done.stdout.split())
    assert not {f"fleetctl.fleet.{name}" for name in ("lint", "explain", "excerpt", "reference")} & imported
