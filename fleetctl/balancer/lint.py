"""What can be proved about the balancer's files before a machine sees them.

`nginx -t` alone proves little: it runs no Lua, opens no port and accepts a config that logs keys
(facts/balancer.md, section 5). Each check answers with findings; an empty list is a pass.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERIOUS = ("MEDIUM", "HIGH")
LUA_DIRECTIVES = ("lua_package_path", "lua_shared_dict", "lua_socket_log_errors")
LUA_BLOCKS = (
    "init_by_lua_block",
    "init_worker_by_lua_block",
    "balancer_by_lua_block",
    "access_by_lua_block",
    "content_by_lua_block",
    "body_filter_by_lua_block",
    "log_by_lua_block",
)
FORBIDDEN = {
    "rewrite": "CVE-2026-42945",
    "if": "an if in a location does not do what it says",
    "resolver": "backends are addresses",
}


@dataclass(frozen=True)
class Checked:
    """What was found, and which tools were not there to look."""

    problems: tuple[str, ...]
    missing: tuple[str, ...] = ()


def check(files: Mapping[str, str]) -> Checked:
    """Every check on the rendered files: structure, known weaknesses, Lua syntax."""
    missing: list[str] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fleetctl-") as name:
        folder = Path(name)
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        conf = folder / "nginx.conf"
        for tool, look in (("crossplane", structure), ("gixy-ng", weaknesses)):
            found = look(conf)
            if found is None:
                missing.append(tool)
            problems += found or []
        lua = lua_syntax(sorted(folder.rglob("*.lua")))
        if lua is None:
            missing.append("luac5.1")
        problems += [problem.replace(f"{folder}/", "") for problem in lua or []]
    return Checked(tuple(problems), tuple(missing))


def structure(conf: Path) -> list[str] | None:
    """Every directive is known, stands where it may and has arguments it takes; None without crossplane."""
    try:
        import crossplane  # type: ignore[import-untyped]  # it ships no types
        from crossplane import analyzer
    except ImportError:
        return None
    if not hasattr(crossplane, "parse_string"):
        return None  # the original 0.5.8 takes what stands in a map for directives; its fork ngxparse does not
    analyzer.DIRECTIVES.update(_lua_directives(analyzer))  # its own function for this fails on Python 3
    payload = crossplane.parse(str(conf), single=True, strict=True)
    problems = [_short(error["error"], conf) for error in payload["errors"]]
    return problems + [
        f"{conf.name}:{line}: {name}: {FORBIDDEN[name]}"
        for name, line in _walk([block for file in payload["config"] for block in file["parsed"]])
        if name in FORBIDDEN
    ]


def weaknesses(conf: Path) -> list[str] | None:
    """gixy-ng's findings of medium severity and above; None where it is not installed."""
    import importlib.util

    if importlib.util.find_spec("gixy") is None:
        return None
    script = "import sys; from gixy.cli.main import main; sys.exit(main())"
    shown = conf.with_name("shown.conf")
    shown.write_text(_for_gixy(conf.read_text(encoding="utf-8")), encoding="utf-8")
    argv = [sys.executable, "-c", script, "-f", "json", str(shown)]
    ran = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    try:
        reports = json.loads(ran.stdout or "[]")
    except ValueError:
        return [f"gixy-ng: {(ran.stderr or ran.stdout).strip()[-300:]}"]
    return [
        f"gixy-ng: {report.get('plugin')}: {report.get('summary')}"
        for report in reports
        if str(report.get("severity", "")).upper() in SERIOUS
    ]


def _for_gixy(text: str) -> str:
    """gixy takes every listen with 443 somewhere in its port (14430) for TLS: no port of a plain listen shows one."""

    def plain(found: re.Match[str]) -> str:
        return found[0] if " ssl" in found[0] else found[0].replace("443", "80")

    return re.sub(r"^\s*listen [^;]*;", plain, text, flags=re.MULTILINE)


def lua_syntax(modules: list[Path]) -> list[str] | None:
    """Files that do not parse as Lua 5.1; None where no compiler is installed (the shadow start loads them all)."""
    compiler = shutil.which("luac5.1") or shutil.which("luac")
    if compiler is None:
        return None
    problems = []
    for module in modules:
        ran = subprocess.run([compiler, "-p", str(module)], check=False, capture_output=True, text=True, timeout=20)
        if ran.returncode:
            problems.append(ran.stderr.strip())
    return problems


def diff(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """A unified diff of two sets of files; empty when they are the same."""
    lines: list[str] = []
    for path in sorted({*old, *new}):
        before, after = old.get(path, ""), new.get(path, "")
        lines += difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"loaded/{path}" if path in old else "/dev/null",
            f"wanted/{path}" if path in new else "/dev/null",
        )
    return "".join(lines)


def _lua_directives(analyzer: Any) -> dict[str, list[int]]:
    anywhere = analyzer.NGX_ANY_CONF | analyzer.NGX_HTTP_UPS_CONF
    takes = analyzer.NGX_CONF_1MORE
    return {name: [anywhere | takes] for name in (*LUA_DIRECTIVES, *LUA_BLOCKS)}


def _walk(blocks: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Every directive with its line, but for an `if` that does nothing but return, which is sound."""
    found = []
    for block in blocks:
        inner = block.get("block") or []
        if block["directive"] != "if" or {each["directive"] for each in inner} != {"return"}:
            found.append((block["directive"], block["line"]))
        found += _walk(inner)
    return found


def _short(error: str, conf: Path) -> str:
    return error.replace(f"{conf.parent}/", "")
