"""The Lua modules as text: they parse, make no globals, and the pure ones do what they say in plain Lua 5.1."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

LUA = Path(__file__).parents[3] / "units/lua"
MODULES = sorted(LUA.glob("*.lua"))
GLOBALS = {
    *[
        "error",
        "getmetatable",
        "io",
        "ipairs",
        "math",
        "ngx",
        "pairs",
        "pcall",
        "require",
        "setmetatable",
        "string",
        "table",
    ],
    *["tonumber", "tostring", "type", "unpack"],
}

pytestmark = pytest.mark.skipif(
    shutil.which("luac5.1") is None or shutil.which("lua5.1") is None, reason="needs Debian's lua5.1"
)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_module_writes_no_global_and_reads_only_known_ones(module: Path) -> None:
    ran = subprocess.run(["luac5.1", "-l", "-l", "-p", str(module)], capture_output=True, text=True, check=True)
    assert "SETGLOBAL" not in ran.stdout
    assert set(re.findall(r"GETGLOBAL\s+\S+ \S+\s+; (\S+)", ran.stdout)) <= GLOBALS


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_module_is_small_and_says_first_what_it_does(module: Path) -> None:
    lines = module.read_text().splitlines()
    assert lines[0].startswith("-- ")
    assert len(lines) < 300
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("arguments", "kind", "retry"),
    [
        ("502, nil, nil, false, 0", "connect", True),
        ("504, nil, nil, false, 2", "connect", True),
        ("504, 0.001, nil, false, 3600", "timeout", False),
        ("504, 0.001, nil, true, 3600", "timeout", False),
        ("502, 0.001, nil, true, 0.001", "stale", True),
        ("502, 0.001, nil, true, 5", "died", False),
        ("502, 0.001, nil, false, 0.001", "died", False),
        ("502, 0.001, 0.002, false, 0.002", "refused", True),
        ("503, 0.001, 0.002, true, 0.002", "refused", True),
    ],
)
def test_only_what_cannot_have_run_is_tried_again(arguments: str, kind: str, retry: bool) -> None:
    script = (
        f'package.path = "{LUA}/?.lua"; local f = require "failure"; local kind = f.kind({arguments}); '
        "io.write(kind, ' ', tostring(f.may_retry(kind)))"
    )
    ran = subprocess.run(["lua5.1", "-e", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{kind} {str(retry).lower()}"


@pytest.mark.parametrize(
    ("text", "n", "value"),
    [("0.001, -", 1, "0.001"), ("0.001, -", 2, "nil"), ("-, 0.5 : 0.7", 3, "0.7"), ("", 1, "nil"), ("1.5", 2, "nil")],
)
def test_the_numbers_of_one_try_are_read_out_of_nginx_s_lists(text: str, n: int, value: str) -> None:
    script = f'package.path = "{LUA}/?.lua"; io.write(tostring(require("failure").nth("{text}", {n})))'
    assert subprocess.run(["lua5.1", "-e", script], capture_output=True, text=True, check=True).stdout == value


@pytest.mark.parametrize(
    ("kept", "said"),
    [("nil", "WARN no peers file yet"), ('"table"', "ERR peers file unreadable, the last table stays")],
)
def test_a_balancer_without_a_peers_file_is_an_error_only_when_there_was_a_table(kept: str, said: str) -> None:
    script = f"""
        package.path = "{LUA}/?.lua"
        ngx = {{ ERR = "ERR", WARN = "WARN", md5 = function() end, shared = {{ fleetctl_state = {{}} }} }}
        function ngx.log(level, ...) print(level .. " " .. table.concat({{...}})) end
        function ngx.shared.fleetctl_state.get() return {kept} end
        package.loaded.inflight, package.loaded.routing = {{}}, {{ weighted = function() end }}
        package.loaded.settings = {{ peers = "/nonexistent/peers" }}
        local peers = require "peers"
        peers.load()
        peers.load()
    """
    ran = subprocess.run(["lua5.1", "-e", script], capture_output=True, text=True, check=True)
    assert len(ran.stdout.splitlines()) == 1
    assert ran.stdout.startswith(said)
