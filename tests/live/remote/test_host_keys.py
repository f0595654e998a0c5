"""Host keys: read as OpenSSH reads them, never accepted by themselves, recorded whole."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleetctl.errors import HostKeyError
from fleetctl.remote import hostkeys, scan
from fleetctl.remote.connection import Connection
from fleetctl.remote.hostkeys import HostKey
from fleetctl.remote.target import SshTarget
from tests.live.remote.sshd import Server, keygen

Connect = Callable[..., Connection]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, HostKey]:
    folder = tmp_path_factory.mktemp("keys")
    return {
        name: HostKey(*Path(f"{keygen(folder / name, kind)}.pub").read_text().split()[:2])
        for name, kind in (("a", "ed25519"), ("b", "ed25519"), ("rsa", "rsa"))
    }


def fingerprint_of(public: Path) -> str:
    return subprocess.run(
        ["ssh-keygen", "-lf", str(public)], check=True, capture_output=True, text=True
    ).stdout.split()[1]


def target(tmp_path: Path, text: str, **changes: object) -> SshTarget:
    (tmp_path / "known_hosts").write_text(text)
    return replace(
        SshTarget(
            67,
            "10.0.0.67",
            known_hosts=(str(tmp_path / "known_hosts"),),
            trust_file=tmp_path / "f" / "fleet.known_hosts",
        ),
        **changes,  # type: ignore[arg-type]
    )


class TestAgainstSshd:
    def test_a_known_key_connects(self, server: Server, connect: Connect) -> None:
        connect(server.target).open()

    def test_an_unknown_key_is_refused_with_its_fingerprint(self, server: Server, connect: Connect) -> None:
        with pytest.raises(HostKeyError) as caught:
            connect(server.target, known_hosts=()).open()
        assert fingerprint_of(Path(f"{server.host_keys[0]}.pub")) in caught.value.cause
        assert caught.value.next_command == "fleetctl trust 67"

    def test_a_changed_key_is_refused_with_both_fingerprints(
        self, make_server: Callable[..., Server], connect: Connect, tmp_path: Path
    ) -> None:
        server = make_server()
        old = keygen(tmp_path / "old")
        server.know(old)
        with pytest.raises(HostKeyError, match="CHANGED") as caught:
            connect(server.target).open()
        assert fingerprint_of(Path(f"{old}.pub")) in caught.value.cause
        assert fingerprint_of(Path(f"{server.host_keys[0]}.pub")) in caught.value.cause
        assert f"{server.known_hosts}:1" in caught.value.cause
        assert f"ssh-keygen -f {server.known_hosts} -R '[127.0.0.1]:{server.port}'" in (caught.value.next_command or "")

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_the_type_that_is_known_is_asked_for(
        self, make_server: Callable[..., Server], connect: Connect, index: int
    ) -> None:
        server = make_server(host_keys=("ed25519", "ecdsa", "rsa"))
        server.know(server.host_keys[index])
        connect(server.target).open()

    def test_hashed_names_are_understood(self, make_server: Callable[..., Server], connect: Connect) -> None:
        server = make_server()
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(server.known_hosts)], check=True, capture_output=True)
        assert "127.0.0.1" not in server.known_hosts.read_text()
        connect(server.target).open()

    def test_scan_shows_and_trust_records(self, make_server: Callable[..., Server], connect: Connect) -> None:
        server = make_server()
        fresh = replace(server.target, known_hosts=(str(server.target.trust_file),))
        found = scan.untrusted(fresh)
        assert found is not None
        hop, key = found
        assert (hop, key.fingerprint) == (fresh, fingerprint_of(Path(f"{server.host_keys[0]}.pub")))
        assert "Accepted" not in (server.folder / "log").read_text()
        hostkeys.trust(hop, key)
        assert scan.untrusted(fresh) is None
        connect(fresh).open()
        assert fresh.trust_file is not None
        assert fresh.trust_file.stat().st_mode & 0o777 == 0o600

    def test_a_jump_host_is_trusted_before_what_is_behind_it(
        self, make_server: Callable[..., Server], connect: Connect
    ) -> None:
        hop, end = make_server(), make_server()
        file = end.folder / "fleet.known_hosts"
        way = replace(
            end.target,
            known_hosts=(str(file),),
            trust_file=file,
            jump=replace(hop.target, known_hosts=(str(file),), trust_file=file, is_jump=True),
        )
        order = []
        while (found := scan.untrusted(way)) is not None:
            order.append(found[0].port)
            hostkeys.trust(*found)
        assert order == [hop.port, end.port]
        connect(way).open()


class TestFiles:
    @pytest.mark.parametrize(
        ("names", "host", "port"),
        [
            ("10.0.0.67", "10.0.0.67", 22),
            ("other,10.0.0.67", "10.0.0.67", 22),
            ("[10.0.0.67]:2201", "10.0.0.67", 2201),
            ("10.0.0.*", "10.0.0.67", 22),
            ("[10.0.0.?7]:2201", "10.0.0.67", 2201),
            ("node67.example", "Node67.Example", 22),
        ],
    )
    def test_names_that_mean_the_machine(
        self, tmp_path: Path, keys: dict[str, HostKey], names: str, host: str, port: int
    ) -> None:
        line = f"{names} {keys['a'].type} {keys['a'].base64} a comment\n"
        hostkeys.check(t := target(tmp_path, line, host=host, port=port), keys["a"], hostkeys.known(t))

    @pytest.mark.parametrize(
        "names", ["10.0.0.6", "[10.0.0.67]:2201", "10.0.0.*,!10.0.0.67", "1", "|1|bad|hash", "|1|"]
    )
    def test_names_that_do_not(self, tmp_path: Path, keys: dict[str, HostKey], names: str) -> None:
        line = f"{names} {keys['a'].type} {keys['a'].base64}\n"
        assert hostkeys.known(target(tmp_path, line)) == ()

    @pytest.mark.parametrize(
        "line",
        ["", "# 10.0.0.67 ssh-ed25519 AAAA", "10.0.0.67", "10.0.0.67 ssh-ed25519 !!!", "\xff\x00", "@cert-authority"],
    )
    def test_lines_that_are_none_are_passed_over(self, tmp_path: Path, keys: dict[str, HostKey], line: str) -> None:
        good = f"10.0.0.67 {keys['a'].type} {keys['a'].base64}"
        assert len(hostkeys.known(target(tmp_path, f"{line}\n{good}"))) == 1

    def test_a_key_of_another_type_than_the_line_says_is_passed_over(
        self, tmp_path: Path, keys: dict[str, HostKey]
    ) -> None:
        assert hostkeys.known(target(tmp_path, f"10.0.0.67 ssh-rsa {keys['a'].base64}\n")) == ()

    def test_a_revoked_key_is_refused_though_known(self, tmp_path: Path, keys: dict[str, HostKey]) -> None:
        words = f"10.0.0.67 {keys['a'].type} {keys['a'].base64}\n"
        t = target(tmp_path, words + "@revoked " + words.replace("10.0.0.67", "*"))
        with pytest.raises(HostKeyError, match="@revoked"):
            hostkeys.check(t, keys["a"], hostkeys.known(t))

    def test_a_certificate_authority_is_no_host_key(self, tmp_path: Path, keys: dict[str, HostKey]) -> None:
        t = target(tmp_path, f"@cert-authority * {keys['a'].type} {keys['a'].base64}\n")
        with pytest.raises(HostKeyError, match="not known"):
            hostkeys.check(t, keys["a"], hostkeys.known(t))

    def test_an_alias_takes_the_place_of_the_address(self, tmp_path: Path, keys: dict[str, HostKey]) -> None:
        t = target(tmp_path, f"bastion {keys['a'].type} {keys['a'].base64}\n", host_key_alias="bastion", port=2200)
        hostkeys.check(t, keys["a"], hostkeys.known(t))

    def test_a_missing_type_is_a_change(self, tmp_path: Path, keys: dict[str, HostKey]) -> None:
        t = target(tmp_path, f"10.0.0.67 {keys['rsa'].type} {keys['rsa'].base64}\n")
        with pytest.raises(HostKeyError, match="CHANGED"):
            hostkeys.check(t, keys["a"], hostkeys.known(t))

    def test_known_types_are_asked_for_first(self, tmp_path: Path, keys: dict[str, HostKey]) -> None:
        t = target(tmp_path, f"10.0.0.67 {keys['rsa'].type} {keys['rsa'].base64}\n")
        offered = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256"]
        assert hostkeys.preferred(hostkeys.known(t), offered) == [offered[2], offered[3], offered[0], offered[1]]


class TestTrust:
    def test_another_fingerprint_than_expected_records_nothing(self, tmp_path: Path, keys: dict[str, HostKey]) -> None:
        t = target(tmp_path, "")
        with pytest.raises(HostKeyError, match="not the expected"):
            hostkeys.trust(t, keys["a"], expected=keys["b"].fingerprint)
        assert t.trust_file is not None
        assert not t.trust_file.exists()
        hostkeys.trust(t, keys["a"], expected=keys["a"].fingerprint)
        assert t.trust_file.exists()

    def test_a_new_key_takes_the_place_of_the_old(self, tmp_path: Path, keys: dict[str, HostKey]) -> None:
        t = target(tmp_path, "")
        other = replace(t, host="10.0.0.66")
        for each, key in ((t, "a"), (other, "a"), (t, "b")):
            hostkeys.trust(each, keys[key])
        assert t.trust_file is not None
        lines = t.trust_file.read_text().splitlines()
        assert [line.split()[0] for line in lines] == ["10.0.0.66", "10.0.0.67"]
        assert lines[1].endswith(keys["b"].base64)

    def test_many_terminals_at_once_lose_no_line(self, tmp_path: Path, keys: dict[str, HostKey]) -> None:
        hosts = [f"10.0.1.{i}" for i in range(24)]
        start = threading.Barrier(len(hosts))

        def trust(host: str) -> None:
            start.wait()
            hostkeys.trust(target(tmp_path, "", host=host), keys["a"])

        threads = [threading.Thread(target=trust, args=(host,)) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        text = (tmp_path / "f" / "fleet.known_hosts").read_text()
        assert sorted(line.split()[0] for line in text.splitlines()) == sorted(hosts)
        assert [path.name for path in (tmp_path / "f").iterdir()] == ["fleet.known_hosts"]
