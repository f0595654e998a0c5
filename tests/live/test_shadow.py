"""Issue 2, section G: a configuration that does not work is found before it replaces one that does."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from fleetctl.balancer import config, peers
from fleetctl.balancer.shadow import failures, shadow
from tests.live.servers import fleet


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="fleetctl-shadow-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def run(folder: Path, change: dict[str, tuple[str, str]] | None = None) -> tuple[int, str]:
    made = shadow(fleet(), config.FLAVOURS["distribution"], peers.render([]), PurePosixPath(folder))
    for name, text in made.files.items():
        old, new = (change or {}).get(name, ("", ""))
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace(old, new) if old else text)
    ran = subprocess.run(["sh", "-c", made.script], check=False, capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_good_configuration_passes_and_leaves_nothing_behind(folder: Path) -> None:
    code, output = run(folder)
    assert failures(output) == (), output
    assert code == 0
    assert output.count("ok ") == 11
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"nginx.conf": ("proxy_buffering", "proxy_bufering")}, "nginx -t"),
        ({"lua/start.lua": ("local start = {}", "local start = = {}")}, "start"),
        ({"lua/state.lua": ('"config"', '"confih"')}, "configuration"),
        (
            {
                "nginx.conf": (
                    "return 404;\n        }\n\n        location @",
                    "return 200;\n        }\n\n        location @",
                )
            },
            "path",
        ),
        ({"nginx.conf": ('"sid":"$route_sid"', '"sid":"$http_authorization"')}, "secret"),
        ({"peers": ("end 0", "end 1")}, "peers file"),
    ],
)
def test_what_is_broken_is_named(folder: Path, change: dict[str, tuple[str, str]], word: str) -> None:
    code, output = run(folder, change)
    assert code == 1, output
    assert any(word in failure for failure in failures(output)), output
    assert not folder.exists()
