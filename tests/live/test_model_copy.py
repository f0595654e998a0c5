"""The job that fetches a model, with real rsync and rrsync: `ssh` is a stand-in that runs the source's program here."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetctl.commands.script import Script, body
from fleetctl.lab import model as lab_model

NAMES = [
    "config.json",
    "a b.bin",
    "单引号'和\"双.bin",
    "new\nline.bin",
    "back\\slash\\n.bin",
    "sub dir/深.bin",
    "[1]*.bin",
    "-rf dir/-n.bin",
]


@dataclass
class Site:
    """A source and a receiver in two folders of this machine."""

    root: Path

    @property
    def source(self) -> Path:
        return self.root / "source/model"

    @property
    def model(self) -> Path:
        return self.root / "receiver/model"

    @property
    def versions(self) -> Path:
        return self.root / "receiver/.model.fleetctl"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.sha256"

    def make_manifest(self) -> None:
        subprocess.run(self.script("job_manifest", self.source, self.manifest), check=True, stdout=subprocess.DEVNULL)

    def script(self, name: str, *args: object) -> list[str]:
        return ["sh", "-c", Script(name, tuple(map(str, args)), uses=("model_files",)).text]

    def start(self, limit: int = 0) -> subprocess.Popen[str]:
        folder = self.root / "transfer"
        folder.mkdir(exist_ok=True)
        (folder / "config").touch()
        environment = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        return subprocess.Popen(
            self.script("job_model", folder, self.model, self.manifest, 3, limit),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def copy(self) -> tuple[int, str]:
        job = self.start()
        try:
            out, err = job.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            pytest.fail(f"still copying: {job.communicate()[1][-500:]}")
        assert not (self.root / "transfer").exists(), "the key outlived its transfer"
        return job.returncode, out + err

    def same(self) -> bool:
        return subprocess.run(["diff", "-r", str(self.source), f"{self.model}/"], check=False).returncode == 0

    def sent(self) -> int:
        """Times the source was asked for files."""
        return (self.root / "asked").read_text().count("rsync") if (self.root / "asked").exists() else 0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    Path("/run/fleetctl").mkdir(exist_ok=True)
    one = Site(tmp_path)
    one.source.mkdir(parents=True)
    (tmp_path / "receiver").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "serve").write_text("set -eu\n" + body("serve"))
    (tmp_path / "revoke").write_text("exit 0\n")
    fake = tmp_path / "bin/ssh"
    fake.write_text(
        "#!/bin/sh\n"
        '[ "$1" = -F ] && shift 2\n'
        'while [ "$1" = -o ] || [ "$1" = -l ]; do shift 2; done\nshift\n'
        f'echo "$*" >>{tmp_path}/asked\n'
        f'export SSH_ORIGINAL_COMMAND="$*"\n'
        f"exec sh {tmp_path}/serve root tag {tmp_path} {one.source} image\n"
    )
    fake.chmod(0o755)
    for number, name in enumerate(NAMES):
        path = one.source / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(200_000 + number))
    (one.source / "empty.bin").touch()
    yield one


def test_a_model_arrives_whole_whatever_its_files_are_called(site: Site) -> None:
    site.make_manifest()
    assert len(site.manifest.read_text().splitlines()) == len(NAMES) + 1
    code, words = site.copy()
    assert code == 0, words
    assert site.same()
    assert site.model.is_symlink()
    assert not (site.versions / "partial").exists()


def test_symlinked_shards_arrive_as_files(site: Site) -> None:
    blob = site.root / "source/blobs/0123"
    blob.parent.mkdir()
    blob.write_bytes(os.urandom(100_000))
    (site.source / "shard.safetensors").symlink_to("../blobs/0123")
    site.make_manifest()
    code, words = site.copy()
    assert code == 0, words
    assert (site.model / "shard.safetensors").read_bytes() == blob.read_bytes()
    assert not (site.model / "shard.safetensors").is_symlink()


def test_a_killed_copy_goes_on_where_it_was(site: Site) -> None:
    """What it noted for itself is where systemd removes it, with the key."""
    (site.source / "big.bin").write_bytes(os.urandom(6_000_000))
    site.make_manifest()
    before = set(Path("/run/fleetctl").iterdir())
    job = site.start(limit=1500)
    part = site.versions / "partial/big.bin"
    deadline = time.monotonic() + 60
    while not (part.exists() and 1_000_000 < part.stat().st_size < 5_000_000):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    assert not [one for one in set(Path("/run/fleetctl").iterdir()) - before if one.name.startswith("model.")]
    had = part.read_bytes()
    assert had == (site.source / "big.bin").read_bytes()[: len(had)]
    code, words = site.copy()
    assert code == 0, words
    assert site.same()


def test_a_spoilt_byte_on_the_receiver_is_fetched_again(site: Site) -> None:
    site.make_manifest()
    part = site.versions / "partial" / NAMES[1]
    part.parent.mkdir(parents=True)
    spoilt = bytearray((site.source / NAMES[1]).read_bytes())
    spoilt[1000] ^= 1
    part.write_bytes(bytes(spoilt[:150_000]))
    whole = site.versions / "partial" / NAMES[0]
    whole.write_bytes(os.urandom((site.source / NAMES[0]).stat().st_size))
    code, words = site.copy()
    assert code == 0, words
    assert site.same()


def test_a_file_that_is_fetched_again_is_checked_again(site: Site) -> None:
    """It was right once and was noted so. It is spoilt, and what comes in its place has the size and time of the note."""
    site.make_manifest()
    changed = site.source / NAMES[0]
    stat = changed.stat()
    note = subprocess.run(
        ["sh", "-c", f"cd '{site.source}'; printf '%s %s\n' \"$(sha256sum <config.json | cut -d' ' -f1)\" "
        "\"$(find config.json -printf '%s %T@ %P')config.json\""],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    part = site.versions / "partial" / NAMES[0]
    part.parent.mkdir(parents=True)
    part.write_bytes(os.urandom(stat.st_size))
    (site.versions / "verified").write_text(note)
    changed.write_bytes(os.urandom(stat.st_size))
    os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    code, words = site.copy()
    assert code == 65, words
    assert "changed since" in words
    assert not site.model.exists()


def test_a_file_that_cannot_be_read_here_ends_the_copy_and_is_named(site: Site) -> None:
    site.make_manifest()
    tool = site.root / "bin/openssl"
    real = subprocess.run(["which", "openssl"], check=True, capture_output=True, text=True).stdout.strip()
    tool.write_text(
        f'#!/bin/sh\n[ "$(stat -L -c %s /proc/self/fd/0)" = 200001 ] && echo "Input/output error" >&2 && exit 1\n'
        f'exec {real} "$@"\n'
    )
    tool.chmod(0o755)
    code, words = site.copy()
    assert code == 1, words
    assert f"{NAMES[1]} arrived and cannot be read" in words
    tool.unlink()
    assert site.copy()[0] == 0
    assert site.same()


def test_a_copy_whose_manifest_was_replaced_meanwhile_is_not_what_is_wanted_any_more(site: Site) -> None:
    """Another command wants another version since, and followed this one."""
    (site.source / "big.bin").write_bytes(os.urandom(3_000_000))
    site.make_manifest()
    job = site.start(limit=1500)
    part = site.versions / "partial/big.bin"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 500_000):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    lines = site.manifest.read_text().splitlines()
    site.manifest.write_text("\n".join(line for line in lines if "config.json" not in line) + "\n")
    out, err = job.communicate(timeout=60)
    assert job.returncode == 65, out + err
    assert "another version is wanted" in err
    assert not site.model.exists()
    (site.source / "config.json").unlink()
    assert site.copy()[0] == 0
    assert site.same()


def test_a_file_that_changed_at_the_source_ends_the_copy_and_the_old_model_stays(site: Site) -> None:
    site.make_manifest()
    assert site.copy()[0] == 0
    (site.source / NAMES[0]).write_bytes(os.urandom(300_000))
    site.make_manifest()
    (site.source / NAMES[0]).write_bytes(os.urandom(300_000))
    code, words = site.copy()
    assert code == 65, words
    assert "changed since" in words
    assert "config.json" in words
    assert (site.model / NAMES[0]).stat().st_size == 200_000
    site.make_manifest()
    assert site.copy()[0] == 0
    assert site.same()


@pytest.mark.parametrize("size", [300_000, 50_000])
def test_a_file_that_grew_or_shrank_at_the_source_ends_the_copy(site: Site, size: int) -> None:
    site.make_manifest()
    (site.source / NAMES[0]).write_bytes(os.urandom(size))
    code, words = site.copy()
    assert code == 65, words
    assert "config.json" in words
    assert not site.model.exists()


def test_a_copy_never_writes_into_a_version_that_serves(site: Site) -> None:
    """A stopped copy has linked a file of the version in use; at the source that file has grown since."""
    (site.source / NAMES[0]).write_bytes(b"aaaa")
    site.make_manifest()
    assert site.copy()[0] == 0
    serving = site.model.resolve()
    (site.versions / "partial").mkdir()
    os.link(serving / NAMES[0], site.versions / "partial" / NAMES[0])
    (site.source / NAMES[0]).write_bytes(b"aaaaCCCC")
    site.make_manifest()
    code, words = site.copy()
    assert code == 0, words
    assert site.same()
    assert (serving / NAMES[0]).read_bytes() == b"aaaa"


def test_a_tool_that_dies_never_makes_an_empty_model_look_whole(site: Site) -> None:
    """awk is killed once, where what is missing is worked out."""
    site.make_manifest()
    real = subprocess.run(["which", "awk"], check=True, capture_output=True, text=True).stdout.strip()
    for number in range(1, 12):
        (site.root / "bin/awk").write_text(
            f'#!/bin/sh\necho x >>{site.root}/count\n[ "$(wc -l <{site.root}/count)" = {number} ] && kill -9 $$\n'
            f'exec {real} "$@"\n'
        )
        (site.root / "bin/awk").chmod(0o755)
        (site.root / "count").unlink(missing_ok=True)
        code, words = site.copy()
        (site.root / "bin/awk").unlink()
        if code == 0:
            assert site.same(), f"awk number {number}: {words}"
            break
        assert not site.model.exists(), f"awk number {number}: {words}"


def test_a_model_without_files_is_no_model(site: Site) -> None:
    subprocess.run(["rm", "-rf", str(site.source)], check=True)
    site.source.mkdir()
    done = subprocess.run(
        site.script("job_manifest", site.source, site.manifest), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "has no files" in done.stderr


def test_a_file_that_is_gone_at_the_source_is_named(site: Site) -> None:
    site.make_manifest()
    (site.source / NAMES[1]).unlink()
    code, words = site.copy()
    assert code == 65, words
    assert NAMES[1] in words


@pytest.mark.parametrize("full", ["files", "note"])
def test_a_full_disk_is_said_whatever_it_was_that_could_not_be_written(site: Site, full: str) -> None:
    """`note`: the disk fills while a file is being checked, and the program that writes its note dies without a word."""
    site.make_manifest()
    small = site.root / "receiver"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], check=True)
    try:
        if full == "files":
            (small / "other").write_bytes(bytes(2_000_000))
        else:
            tool = site.root / "bin/awk"
            tool.write_text(
                "#!/bin/sh\ncase $* in *good=*)\n"
                f"\tdd if=/dev/zero of={small}/other bs=4096 2>/dev/null\n\texit 134 ;;\nesac\n"
                'exec /usr/bin/awk "$@"\n'
            )
            tool.chmod(0o755)
        code, words = site.copy()
        assert code != 0
        assert "No space left" in words
        (small / "other").unlink()
        (site.root / "bin/awk").unlink(missing_ok=True)
        code, words = site.copy()
        assert code == 0, words
        assert site.same()
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("reason", ["root@source: Permission denied (publickey).", "Host key verification failed."])
def test_a_source_that_lets_nobody_in_is_lost_and_not_waited_for(site: Site, reason: str) -> None:
    site.make_manifest()
    (site.root / "bin/ssh").write_text(f"#!/bin/sh\necho '{reason}' >&2\nexit 255\n")
    rc, said = site.copy()
    assert rc == 69
    assert f"there is no way into the source: {reason}" in said


def test_a_copy_that_cannot_begin_leaves_no_key(site: Site) -> None:
    assert site.copy()[0] != 0  # there is no manifest


def test_unchanged_files_are_linked_and_not_asked_for(site: Site) -> None:
    site.make_manifest()
    assert site.copy()[0] == 0
    before = (site.model / NAMES[1]).stat().st_ino
    asked = site.sent()
    (site.source / "config.json").write_bytes(b"{}")
    site.make_manifest()
    assert site.copy()[0] == 0
    assert site.same()
    assert (site.model / NAMES[1]).stat().st_ino == before
    assert site.sent() == asked + 1, "one file, one stream"
    assert len([one for one in site.versions.iterdir() if one.is_dir()]) == 2


def test_a_folder_that_was_there_before_is_taken_over_file_by_file(site: Site) -> None:
    site.make_manifest()
    site.model.mkdir()
    (site.model / NAMES[1]).write_bytes((site.source / NAMES[1]).read_bytes())
    (site.model / "old.bin").write_bytes(b"old")
    assert site.copy()[0] == 0
    assert site.same()
    kept = [one for one in site.versions.iterdir() if one.name.startswith("found")]
    assert len(kept) == 1
    assert (kept[0] / "old.bin").read_bytes() == b"old"


def test_a_link_that_was_there_before_is_kept(site: Site) -> None:
    """The model's path led to a disk of somebody's choice."""
    site.make_manifest()
    theirs = site.root / "big disk/model"
    theirs.mkdir(parents=True)
    (theirs / NAMES[1]).write_bytes((site.source / NAMES[1]).read_bytes())
    site.model.symlink_to(theirs)
    assert site.copy()[0] == 0
    assert site.same()
    kept = [one for one in site.versions.iterdir() if one.name.startswith("found.")]
    assert [one.readlink() for one in kept] == [theirs]
    assert [one.name for one in theirs.iterdir()] == [NAMES[1]]
    (site.source / "config.json").write_bytes(b"{}")
    site.make_manifest()
    assert site.copy()[0] == 0
    assert len([one for one in site.versions.iterdir() if one.name.startswith("found.")]) == 1


def test_a_change_within_the_same_second_is_seen(site: Site) -> None:
    file = site.source / "config.json"
    second = file.stat().st_mtime_ns // 10**9 * 10**9
    for content, after in ((b"{'a': 1}", 1_000_000), (b"{'a': 2}", 900_000_000)):
        file.write_bytes(content)
        os.utime(file, ns=(second, second + after))
        site.make_manifest()
        assert hashlib.sha256(content).hexdigest() in site.manifest.read_text()


def test_a_file_of_the_source_that_cannot_be_read_is_named(site: Site) -> None:
    (site.root / "openssl").write_text(
        '#!/bin/sh\n[ "$(stat -L -c %s /proc/self/fd/0)" = 200001 ] && exit 1\nexec sha256sum\n'
    )
    (site.root / "openssl").chmod(0o755)
    done = subprocess.run(
        site.script("job_manifest", site.source, site.manifest),
        env={**os.environ, "PATH": f"{site.root}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"{NAMES[1]} cannot be read" in done.stderr
    assert not site.manifest.exists()


def test_the_manifest_reads_only_files_that_changed(site: Site) -> None:
    site.make_manifest()
    before = site.manifest.read_text()
    (site.source / "config.json").write_bytes(b"{}")
    os.utime(site.source / "config.json", (1, 1))
    done = subprocess.run(
        site.script("job_manifest", site.source, site.manifest), check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "bytes 2 2 reading"
    assert len(set(before.splitlines()) ^ set(site.manifest.read_text().splitlines())) == 2


def test_the_lab_model_arrives(site: Site) -> None:
    lab_model.make(site.root / "source/qwen", "qwen")
    subprocess.run(["rm", "-rf", str(site.source)], check=True)
    (site.root / "source/qwen").rename(site.source)
    site.make_manifest()
    code, words = site.copy()
    assert code == 0, words
    assert site.same()


@pytest.mark.parametrize("asked", ["", "cat /etc/shadow", "rsync --server . /etc", "sh", "save; sh", "layer $(id)"])
def test_a_transfer_key_may_do_nothing_else(site: Site, asked: str) -> None:
    done = subprocess.run(
        ["sh", str(site.root / "serve"), "root", "tag", str(site.root), str(site.source), "image"],
        env={**os.environ, "SSH_ORIGINAL_COMMAND": asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "root:" not in done.stdout
