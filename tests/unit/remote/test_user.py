"""A CI container may run as a user that /etc/passwd does not know."""

from __future__ import annotations

import getpass
import os

import pytest

from fleetctl.plan import session
from fleetctl.remote import user


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 54321"), OSError("No username set")])
def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def nobody() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert user.name() == str(os.getuid())
    assert session.who().startswith(f"{os.getuid()}@")
