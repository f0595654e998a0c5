"""Who types, on this computer."""

from __future__ import annotations

import getpass
import os


def name() -> str:
    """The user's name; in a CI container whose user has none, its number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python before 3.13 raises the one, later ones the other
        return str(os.getuid())
