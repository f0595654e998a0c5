"""The balancer's files: what is generated is data, what is computed fits the fleet."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.balancer import config, lint, peers, plain
from fleetctl.balancer.config import FLAVOURS, Places
from fleetctl.balancer.peers import PeerState
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Inventory

CHECKOUT = Path(__file__).parents[3]


def fleet(document: dict[str, Any] | None = None, **balancer: Any) -> Fleet:
    base = yaml.safe_load((CHECKOUT / "inventory.yaml").read_text())
    base.update(document or {})
    base["balancer"].update(balancer)
    return Fleet(Inventory.model_validate(base), CHECKOUT / "inventory.yaml")


def nginx_conf(**balancer: Any) -> str:
    return config.render(fleet(**balancer), FLAVOURS["distribution"])["nginx.conf"]


def test_every_lua_module_in_units_is_installed() -> None:
    assert {path.stem for path in (CHECKOUT / "units/lua").glob("*.lua")} == set(config.LUA_MODULES)


def test_no_backend_is_in_the_configuration() -> None:
    for text in config.render(fleet(), FLAVOURS["openresty"]).values():
        assert "10.255.254" not in text


def test_paths_are_those_of_the_fleet_and_of_the_flavour() -> None:
    text = config.render(fleet(), FLAVOURS["openresty"])["nginx.conf"]
    assert "/etc/fleetctl/qwen38/balancer/lua/?.lua" in text
    assert "/usr/local/openresty/lualib/?.lua" in text
    assert "load_module" not in text
    assert "pid /run/fleetctl/qwen38-balancer.pid;" in text
    assert "listen 2219;" in text
    assert "listen 127.0.0.1:2220;" in text
    assert "load_module" in nginx_conf()


def test_the_hash_changes_with_any_file_and_with_nothing_else() -> None:
    made = fleet()
    files = config.render(made, FLAVOURS["distribution"])
    assert config.config_hash(files) == config.config_hash(config.render(made, FLAVOURS["distribution"]))
    assert f'config = "{config.config_hash(files)}"' in files["settings.lua"]
    seen = {config.config_hash(files)}
    for path in files:
        seen.add(config.config_hash({**files, path: files[path] + "\n"}))
    assert len(seen) == len(files) + 1
    assert config.config_hash(config.render(fleet(body_limit="64m"), FLAVOURS["distribution"])) not in seen


def test_the_shipped_inventory_passes_every_check_for_every_flavour() -> None:
    for flavour in ("distribution", "openresty"):
        found = lint.check(config.render(fleet(), FLAVOURS[flavour]))
        assert found.problems == ()


TLS = {"certificate": "/etc/ssl/fleet.pem", "key": "/etc/ssl/fleet.key"}


@pytest.mark.parametrize("tls", [None, TLS])
@pytest.mark.parametrize(("listen", "state_listen"), [(2219, 2220), (14430, 14431), (443, 24439)])
def test_no_port_and_no_certificate_is_a_weakness(tls: dict[str, str] | None, listen: int, state_listen: int) -> None:
    made = fleet(tls=tls, listen=listen, state_listen=state_listen)
    for files in (config.render(made, FLAVOURS["distribution"]), config.render(made, FLAVOURS["openresty"])):
        assert lint.check(files).problems == ()
    without_lua = fleet(mode="plain", tls=tls, listen=listen, state_listen=state_listen)
    assert lint.check(plain.render(without_lua, config.PLAIN, ())).problems == ()


def test_weak_tls_is_found_where_there_is_tls() -> None:
    files = config.render(fleet(tls=TLS, listen=14430), FLAVOURS["distribution"])
    text = files["nginx.conf"].replace("ssl_protocols TLSv1.2 TLSv1.3", "ssl_protocols TLSv1 TLSv1.2")
    found = lint.check({**files, "nginx.conf": text})
    if "gixy-ng" in found.missing:
        pytest.skip("needs gixy-ng")
    assert any("weak_ssl_tls" in problem for problem in found.problems), found


@pytest.mark.parametrize(
    ("path", "old", "new", "word"),
    [
        ("nginx.conf", "proxy_buffering off", "proxy_bufering off", "unknown directive"),
        ("nginx.conf", "proxy_buffering off", "proxy_buffering", "number of arguments"),
        ("nginx.conf", "    upstream", "    proxy_pass http://x; upstream", "not allowed here"),
        ("nginx.conf", "server_tokens off", "server_tokens on", "version_disclosure"),
        ("nginx.conf", "access_log off;", "access_log off; rewrite ^ /x;", "CVE-2026-42945"),
        ("nginx.conf", "            return 404;\n", "            return 404;\n{", "nginx.conf"),
        ("lua/json.lua", "local json = {}", "local json = = {}", "unexpected symbol"),
        ("settings.lua", "return {", "return {{", "expected"),
    ],
)
def test_what_nginx_alone_would_accept_or_report_late_is_found(path: str, old: str, new: str, word: str) -> None:
    files = config.render(fleet(), FLAVOURS["distribution"])
    assert old in files[path]
    found = lint.check({**files, path: files[path].replace(old, new)})
    if path.endswith(".lua") and "luac5.1" in found.missing:
        pytest.skip("needs luac5.1")
    if word == "version_disclosure" and "gixy-ng" in found.missing:
        pytest.skip("needs gixy-ng")
    assert any(word in problem for problem in found.problems), found


def test_a_diff_names_the_files_that_change() -> None:
    old = config.render(fleet(), FLAVOURS["distribution"])
    new = config.render(fleet(read_timeout=60), FLAVOURS["distribution"])
    text = lint.diff(old, new)
    assert "-            proxy_read_timeout 3600000ms;" in text
    assert "+            proxy_read_timeout 60000ms;" in text
    assert lint.diff(old, old) == ""


@given(st.text())
def test_a_lua_literal_holds_any_text_in_one_line_of_ascii(text: str) -> None:
    literal = config.lua_literal(text)
    assert "\n" not in literal
    assert literal.isascii()
    assert re.sub(r"\\\d{3}", "", literal[1:-1]).count('"') == 0


def test_lua_reads_the_literals_back(tmp_path: Path) -> None:
    lua = shutil.which("lua5.1")
    if lua is None:
        pytest.skip("needs lua5.1")
    hostile = "a\"b\\c\n\r\0]]--$'张三"
    script = tmp_path / "x.lua"
    script.write_text(f"io.write({config.lua_literal(hostile)})")
    assert subprocess.run([lua, str(script)], capture_output=True, check=True).stdout.decode() == hostile
    assert config.lua_literal([1, 2.5, True, None, "x"]) == '{ 1, 2.5, true, nil, "x" }'


def test_connections_and_open_files_grow_with_the_fleet() -> None:
    assert config.connections(fleet()) >= 2 * 16 * 32
    assert config.open_files(fleet()) >= 2 * config.connections(fleet())
    bigger = fleet({"engine": {"max-num-seqs": 256, "tensor-parallel-size": 2}})
    assert config.connections(bigger) > config.connections(fleet())
    assert config.open_files(bigger) < 1_048_576


def test_idle_connections_are_closed_before_the_backend_closes_them() -> None:
    assert config.keepalive_timeout(fleet()) < 120
    default = yaml.safe_load((CHECKOUT / "inventory.yaml").read_text())["instances"]
    default["env"] = {}
    assert config.keepalive_timeout(fleet({"instances": default})) == 4


def test_the_floor_is_max_num_seqs_unless_given() -> None:
    files = config.render(fleet(), FLAVOURS["distribution"])
    assert "load_floor = 32," in files["settings.lua"]
    assert "load_floor = 7," in config.render(fleet(load_floor=7), FLAVOURS["distribution"])["settings.lua"]


@pytest.mark.parametrize(
    "bad",
    [
        {"cors_origins": ["https://a.example;evil"]},
        {"session_headers": ["X Session"]},
        {"paths": ["/v1/ {"]},
        {"trusted_proxies": ["10.0.0.0/8; allow all"]},
        {"key_order": []},
        {"weights": {"67": 0}},
        {"load_factor": 0.5},
    ],
)
def test_a_value_that_could_become_nginx_text_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        fleet(**bad)


def test_the_peers_of_a_stage_are_in_the_order_of_the_table_with_their_weights() -> None:
    made = fleet(weights={"68": 2, "68/1": 3})
    table = peers.of(made, {"69/1": PeerState.OFF}, [69, 68])
    assert [peer.id for peer in table] == [f"{m}/{i}" for m in (69, 68) for i in range(4)]
    assert [peer.weight for peer in table] == [1, 1, 1, 1, 2, 3, 2, 2]
    assert table[1].state is PeerState.OFF


def test_the_detection_prefers_what_has_lua(tmp_path: Path) -> None:
    def detected(*present: str) -> str:
        script = config.detect_script()
        for path in ("/usr/local/openresty/nginx/sbin/nginx", "/usr/sbin/nginx", "/usr/lib/nginx/modules"):
            script = script.replace(f" {path}", f" {tmp_path}{path}")
        shutil.rmtree(tmp_path / "usr", ignore_errors=True)
        for path in present:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch(mode=0o755)
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.strip()

    modules = [f"usr/lib/nginx/modules/{name}_module.so" for name in ("ndk_http", "ngx_http_lua")]
    assert detected() == ""
    assert detected("usr/sbin/nginx") == "plain"
    assert detected("usr/sbin/nginx", *modules) == "distribution"
    assert detected("usr/sbin/nginx", *modules, "usr/local/openresty/nginx/sbin/nginx") == "openresty"


def test_logs_are_rotated_by_telling_the_master() -> None:
    text = config.logrotate(fleet())
    assert "/var/log/fleetctl/qwen38/*.log" in text
    assert "kill -USR1" in text
    assert "/run/fleetctl/qwen38-balancer.pid" in text


def test_places_can_be_moved() -> None:
    where = PurePosixPath("/tmp/x")
    places = Places(where, where / "l", where / "p", "127.0.0.1:1", "127.0.0.1:2", where / "k")
    text = config.render(fleet(), FLAVOURS["distribution"], places)["nginx.conf"]
    assert "/etc/fleetctl" not in text
    assert "listen 127.0.0.1:1;" in text


def test_the_mode_without_lua_chains_the_key_sources_in_order() -> None:
    made = fleet(mode="plain", session_headers=["X-A", "X-B"], key_order=["bearer", "session"])
    text = plain.render(made, config.PLAIN, peers.of(made, {}, [69]))["nginx.conf"]
    assert text.index("map $key_bearer $key_0") < text.index("map $http_x_a $key_1")
    assert "hash $key_0 consistent;" in text
    assert text.count("server 10.255.254.69:") == 4
    assert "lua" not in text
