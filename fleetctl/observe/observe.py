"""Parse what a probe printed into facts. Pure: text in, facts out."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from fleetctl.commands.docker import Topology
from fleetctl.commands.probe import MARK
from fleetctl.observe import lock, records
from fleetctl.observe.facts import (
    BalancerState,
    Container,
    Disk,
    Facts,
    Health,
    Image,
    JobState,
    Listener,
    ModelState,
    PeerState,
    Stopped,
    Unit,
    parse_json,
    served_models,
)
from fleetctl.observe.npu_smi import parse_info


def sections(text: str) -> dict[str, str]:
    """`@@fleetctl NAME` headed parts by name."""
    found: dict[str, str] = {}
    for part in re.split(rf"^{MARK} ", text, flags=re.M)[1:]:
        head, _, rest = part.partition("\n")
        if head.strip():
            found[head.split()[0]] = rest.rstrip("\n")
    return found


def parse(machine: int, text: str) -> Facts:
    """The facts in the output of `commands.probe.status` or `.full`."""
    part = sections(text)
    http = {
        words[0]: int(words[1])
        for words in (line.split() for line in part.get("http", "").splitlines())
        if len(words) == 3 and words[1].isdigit()
    }
    failed = {}
    if "docker-containers" in http and http["docker-containers"] != 200:
        failed["docker"] = "the Docker engine does not answer"
    release = records.release(part["release"]) if "release" in part else None
    if "release" in part and release is None:
        failed["release"] = "it has another form than a release"
    good, broken = releases(part.get("releases", ""))
    marks = marked(part.get("marks", ""))
    texts = file_texts(part.get("unit-files", ""))
    npu = parse_info(part["npu"]) if part.get("npu", "").strip() else None
    if "npu" in part and npu is None:
        failed["npu"] = part.get("npu.err", "").strip() or "npu-smi gave no answer"
    return Facts(
        machine=machine,
        units=units(part.get("units", "")),
        containers=containers(part.get("docker-containers", "")) if http.get("docker-containers") == 200 else None,
        image=image(part.get("docker-image", "")) if http.get("docker-image") == 200 else None,
        files={
            **hashes(part.get("files", "")),
            **{path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()},
        },
        unit_texts=texts,
        health=health(part, http),
        npu=npu,
        listeners=listeners(part["listeners"], part.get("owners", "")) if "listeners" in part else None,
        disks={k.removeprefix("disk-"): d for k in part if k.startswith("disk-") and (d := disk(part[k]))},
        model=model(part.get("model")) if "jobs" in part else None,
        topology=Topology(tuple(line for line in part.get("topology", "").splitlines() if line)),
        missing_paths=tuple(part.get("missing", "").split()),
        missing_tools=tuple(part.get("tools", "").split()),
        driver=driver(part.get("driver", "")),
        docker=docker_info(part.get("docker-info", "")),
        stopped=marks.get("stopped", {}),
        parked=marks.get("parked", {}),
        doubtful=marks.get("doubtful", {}),
        release=release,
        experiment=records.experiment(part["experiment"]) if "experiment" in part else None,
        releases=good,
        broken_releases=broken,
        key_mode=part.get("key-mode", "").strip() or None,
        starts=starts(part.get("starts", "")),
        jobs={
            w[0].removesuffix(".service"): w[3] for w in map(str.split, part.get("jobs", "").splitlines()) if len(w) > 3
        },
        progress=progress(part.get("progress", "")),
        brought=tuple(line.split()[0] for line in part.get("brought", "").splitlines() if line.split()),
        brought_as=tuple((w[0], w[1]) for w in map(str.split, part.get("brought", "").splitlines()) if len(w) == 2),
        peers=part["peers"] + "\n" if "peers" in part else None,
        balancer=balancer(part.get("balancer-state", "")) if http.get("balancer-state") == 200 else None,
        balancer_files=not_as_applied(part["balancer-files"]) if "balancer-files" in part else None,
        flavour=part.get("flavour", "").strip() or None,
        host_keys=tuple(line for line in part.get("host-keys", "").splitlines() if line.strip()),
        unreachable_peers=tuple(line for line in part.get("reach", "").splitlines() if line),
        npu_owners={
            int(w[0]): o
            for w in map(str.split, part.get("npu-owners", "").splitlines())
            if w and (o := owner(" ".join(w[1:])))
        },
        foreign_units=tuple(part.get("foreign-units", "").split()),
        own_units=own_units(part.get("own-units", "")),
        own_balancers=own_balancers(part.get("own-units", "")),
        transfer_tags=tuple(part.get("transfers", "").split()),
        model_config=part.get("model-config"),
        model_described="model-described" in part if "model-config" in part else None,
        link=int(part["link"]) if part.get("link", "").strip().isdigit() else None,
        lock=lock.parse(part["fleet-lock"]) if "fleet-lock" in part else None,
        now=int(part["now"]) if part.get("now", "").strip().isdigit() else None,
        failed=failed,
    )


def starts(text: str) -> tuple[float, ...]:
    """Of lines of the audit log: seconds, oldest first."""
    lines = [found for line in text.splitlines() if isinstance(found := parse_json(line), dict)]
    listed = [seconds for line in lines if isinstance(line.get("starts"), list) for seconds in line["starts"]]
    return tuple(float(one) for one in listed if isinstance(one, int | float))


def units(text: str) -> dict[str, Unit]:
    """Blocks of `systemctl show`, by unit name without `.service`."""
    found = {}
    for block in text.strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" not in values:
            continue
        restarts = values.get("NRestarts", "")
        found[values["Id"].removesuffix(".service")] = Unit(
            active="absent" if values.get("LoadState") == "not-found" else values.get("ActiveState", "unknown"),
            sub=values.get("SubState", ""),
            enabled=values.get("UnitFileState", "") or "absent",
            result=values.get("Result", ""),
            restarts=int(restarts) if restarts.isdigit() else 0,
            fragment=values.get("FragmentPath", ""),
            dropins=tuple(values.get("DropInPaths", "").split()),
        )
    return found


def file_texts(text: str) -> dict[str, str]:
    """Files by path, of `tail -v -n +1 FILE... /dev/null`: exact to the last byte, but for those of /dev/null."""
    parts = re.split(r"(?:^|\n)==> (/.*) <==\n", f"{text}\n")
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    found.pop("/dev/null", None)
    return found


def releases(text: str) -> tuple[tuple[dict[str, Any], ...], dict[str, str]]:
    """Releases of `tail -v -n +1 FILE... /dev/null`, and by path why a file is none."""
    texts = file_texts(text)
    good = tuple(found for one in texts.values() if (found := records.release(one)) is not None)
    return good, {path: why for path, one in texts.items() if (why := records.wrong(one)) is not None}


def own_units(text: str) -> dict[str, str]:
    """Headers as `grep -H` prints them, `NAME.service:# fleet=X instance=67/3 ...`: instance ids by unit name."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"(.+)\.service:# fleet=\S+ instance=(\S+)", line)
        if match:
            found[match[1]] = match[2]
    return found


def own_balancers(text: str) -> tuple[str, ...]:
    """Of the same lines the names of the balancer's units, whatever it is called."""
    return tuple(re.findall(r"^(.+)\.service:# fleet=\S+ balancer$", text, flags=re.M))


def containers(text: str) -> tuple[Container, ...] | None:
    """The list of Docker's `/containers/json?all=1`."""
    entries = parse_json(text)
    if not isinstance(entries, list):
        return None
    return tuple(
        Container(
            name=entry["Names"][0].lstrip("/"),
            id=entry["Id"],
            image_id=entry["ImageID"],
            state=entry["State"],
            labels=entry.get("Labels") or {},
            created=entry.get("Created"),
            ports=tuple(sorted({p["PublicPort"] for p in entry.get("Ports") or [] if p.get("PublicPort")})),
        )
        for entry in entries
    )


def image(text: str) -> Image | None:
    """Of `/images/REF/json`: the content hash covers the layers' diff ids and what the image runs."""
    entry = parse_json(text)
    if not isinstance(entry, dict) or "RootFS" not in entry:
        return None
    config = entry.get("Config") or {}
    kept = {k: config[k] for k in ("Entrypoint", "Cmd", "Env", "WorkingDir", "User") if config.get(k)}
    content = json.dumps([entry["RootFS"].get("Layers") or [], kept], sort_keys=True)
    digests = tuple(str(name).partition("@")[2] for name in entry.get("RepoDigests") or ())
    return Image(entry["Id"], hashlib.sha256(content.encode()).hexdigest(), int(entry.get("Size") or 0), digests)


def hashes(text: str) -> dict[str, str]:
    return {line[66:]: line[:64] for line in text.splitlines() if len(line) > 66}


def not_as_applied(text: str) -> dict[str, str]:
    """Of `sha256sum -c --quiet`, by path: `changed`, or `missing`."""
    lines = re.findall(r"^(.+): FAILED( open or read)?$", text, flags=re.M)
    return {path: "missing" if unread else "changed" for path, unread in lines}


def health(part: dict[str, str], http: dict[str, int]) -> dict[int, Health]:
    found = {}
    for name, code in http.items():
        if not name.startswith("health-"):
            continue
        index = name.removeprefix("health-")
        models = parse_json(part.get(f"models-{index}", "")) if http.get(f"models-{index}") == 200 else None
        names = served_models(models)
        accepts = {200: True, 401: False}.get(http.get(f"models-{index}", 0))
        found[int(index)] = Health(code or None, names[0] if names else None, accepts)
    return found


def progress(text: str) -> dict[str, JobState]:
    """Lines of unit, how it ended (empty while it runs) and its last words, by unit."""
    found = {}
    for line in text.splitlines():
        unit, _, rest = line.partition("\t")
        ended, _, words = rest.partition("\t")
        match = re.fullmatch(r"bytes (\d+) (\d+) ?(.*)", words)
        done, total, said = (int(match[1]), int(match[2]), match[3]) if match else (None, None, words)
        well = ended in ("success", "success 0")  # not by SIGTERM, which systemd takes for a good end
        state = "failed" if ended and not well else "done" if ended or said == "complete" else "running"
        found[unit] = JobState(state, done, total, said)
    return found


def listeners(text: str, owners: str) -> tuple[Listener, ...]:
    """Of `ss -Hltnp`, each with the unit or container its process belongs to."""
    known = {}
    for line in owners.splitlines():
        number, _, rest = line.partition(" ")
        exe, _, cgroup = rest.partition(" ")
        known[number] = (exe, cgroup)
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        address, _, port = words[3].rpartition(":")
        match = re.search(r"pid=(\d+)", line)
        pid = match.group(1) if match else ""
        exe, cgroup = known.get(pid, ("", ""))
        process = exe.removesuffix(" (deleted)") or None
        # A wildcard of one device (`0.0.0.0%eth0`) is that address.
        host = address.strip("[]").split("%")[0]
        found.append(Listener(host, int(port), int(pid) if pid else None, process, owner(cgroup)))
    return tuple(found)


def owner(cgroup: str) -> str | None:
    """`container 0123456789ab` or `unit NAME.service` of a process's cgroup lines."""
    containers = re.findall(r"docker[/-]([0-9a-f]{12})[0-9a-f]{52}", cgroup)
    if containers:
        # The innermost: a machine may itself be a container.
        return f"container {containers[-1]}"
    units = re.findall(r"([A-Za-z0-9@._:-]+\.service)", cgroup)
    return f"unit {units[-1]}" if units else None


def disk(text: str) -> Disk | None:
    lines = [line.split() for line in text.splitlines()]
    if not lines or len(lines[0]) < 6:
        return None
    words, inodes = lines[0], lines[1] if len(lines) > 1 and len(lines[1]) > 5 else ["0"] * 6
    limited = inodes[1].isdigit() and inodes[1] != "0" and inodes[3].isdigit()
    return Disk(words[5], words[0], int(words[3]), int(words[1]), int(inodes[3]) if limited else None)


def model(text: str | None) -> ModelState:
    values = {line.split()[0]: line.split()[1:] for line in (text or "").splitlines() if line.split()}
    arrived = int(values["arrived"][0]) if values.get("arrived") else 0

    def first(key: str) -> str | None:
        return values[key][0] if values.get(key) else None

    version, versions = first("version"), tuple(values.get("versions") or ())
    if "listing" not in values:
        return ModelState(False, None, None, None, None, arrived, version=version, versions=versions)
    size = first("size")
    verified = values.get("verified") or []
    # The manifest that was verified may have been replaced by that of another version.
    known = len(verified) == 2 and verified[0] == first("manifest")
    pair = verified if known else [None, None]
    since = first("since")
    return ModelState(
        present=True,
        listing=first("listing"),
        manifest=pair[0],
        verified_listing=pair[1],
        size=int(size) if size else None,
        arrived=arrived,
        since=int(since) if since else None,
        version=version,
        versions=versions,
    )


def driver(text: str) -> str | None:
    match = re.search(r"^(?:Version|version|package_version)\s*=\s*(\S+)", text, flags=re.M)
    return match.group(1) if match else (text.split(maxsplit=1)[0] if text.split() else None)


def docker_info(text: str) -> dict[str, Any] | None:
    entry = parse_json(text)
    if not isinstance(entry, dict):
        return None
    return {k: entry.get(k) for k in ("ServerVersion", "Driver", "DockerRootDir")}


def marked(text: str) -> dict[str, dict[str, Stopped]]:
    """Lines `KIND/NAME<tab>JSON`: the marks of instances, by kind and name."""
    found: dict[str, dict[str, Stopped]] = {}
    for line in text.splitlines():
        path, _, rest = line.partition("\t")
        kind, _, name = path.partition("/")
        found.setdefault(kind, {})[name] = records.mark(rest)
    return found


def balancer(text: str) -> BalancerState | None:
    entry = parse_json(text)
    if not isinstance(entry, dict):
        return None
    peers = tuple(
        PeerState(
            p.get("id", ""),
            p.get("address", ""),
            p.get("state", "unknown"),
            p.get("inflight"),
            p.get("health"),
            p.get("key"),
        )
        for p in entry.get("peers") or ()
    )
    return BalancerState(
        entry.get("version") or "", entry.get("config") or "", peers, entry.get("key"), entry.get("old_key")
    )
