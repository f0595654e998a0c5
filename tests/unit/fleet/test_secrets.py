"""A secret is read where the inventory says, and shown nowhere."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from fleetctl.errors import SecretError
from fleetctl.fleet.schema import SecretRef
from fleetctl.fleet.secrets import Secret, resolve

VALUE = "sk-unit-test-0123456789"


def test_a_secret_is_masked_wherever_it_is_printed() -> None:
    secret = Secret(VALUE)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!r:>20}", str([secret]), str({"key": secret})]
    assert not any(VALUE in text for text in shown)
    assert secret.reveal() == VALUE


def test_a_secret_is_never_serialised() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Secret(VALUE))
    with pytest.raises(TypeError):
        copy.copy(Secret(VALUE))


def test_secrets_compare_by_value() -> None:
    assert Secret(VALUE) == Secret(VALUE)
    assert Secret(VALUE) != Secret("x")
    assert Secret(VALUE) != VALUE
    assert len({Secret(VALUE), Secret(VALUE)}) == 1


def test_from_an_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_API_KEY", VALUE)
    assert resolve(SecretRef(env="FLEET_API_KEY"), tmp_path).reveal() == VALUE
    monkeypatch.delenv("FLEET_API_KEY")
    with pytest.raises(SecretError, match="environment variable FLEET_API_KEY is not set"):
        resolve(SecretRef(env="FLEET_API_KEY"), tmp_path)


def test_from_a_file_beside_the_inventory_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{VALUE}\n", encoding="utf-8")
    file.chmod(0o600)
    assert resolve(SecretRef(file="key"), tmp_path).reveal() == VALUE
    file.chmod(0o640)
    with pytest.raises(SecretError, match=r"can be read by others \(mode 0640\)\n  next:  chmod 600"):
        resolve(SecretRef(file="key"), tmp_path)


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="No such file"):
        resolve(SecretRef(file="none"), tmp_path)
    with pytest.raises(SecretError, match="Is a directory"):
        resolve(SecretRef(file="."), tmp_path)


def test_from_a_command_run_in_the_inventorys_folder(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{VALUE}\r\n", encoding="utf-8")
    assert resolve(SecretRef(command="cat key"), tmp_path).reveal() == VALUE


def test_a_failing_command_is_reported_without_its_output(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="ended with exit code 3") as caught:
        resolve(SecretRef(command=f"echo {VALUE}; exit 3"), tmp_path)
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("value", ["", "two words", "two\nlines", "tab\t", "中文", "x" * 5000, "nul\x00"])
def test_what_no_header_can_carry_is_refused_without_being_repeated(tmp_path: Path, value: str) -> None:
    file = tmp_path / "key"
    file.write_text(value, encoding="utf-8")
    file.chmod(0o600)
    with pytest.raises(SecretError, match="file key is") as caught:
        resolve(SecretRef(file="key"), tmp_path)
    assert not value or value not in str(caught.value)
