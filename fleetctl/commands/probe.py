"""The one script that looks at a machine: every question at once, each answer to its own file, all printed at the end.

Why so: a round trip and a process each cost tens of milliseconds, so there is one round trip, one curl for all of
Docker, /health and the balancer, and one `systemctl show`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleetctl.commands import ascend, fleet_lock, paths
from fleetctl.commands.script import body, quote, words
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Machine

MARK = "@@fleetctl"
UNIT_PROPERTIES = "Id,ActiveState,SubState,UnitFileState,Result,NRestarts,FragmentPath,DropInPaths,LoadState"
NPU = "timeout 8 npu-smi info >npu 2>npu.err"
# The process table's third column is the pid, in every driver's layout (facts/npu-smi).
NPU_OWNERS = (
    "for p in $(awk -F'|' '$3 ~ /^ *[0-9]+ *$/ { print $3 }' npu | sort -u); do "
    'printf "%s %s\\n" "$p" "$(tr "\\n" " " </proc/$p/cgroup)"; done >npu-owners 2>/dev/null'
)
TOPOLOGY = 'for n in /sys/devices/system/node/node[0-9]*/cpulist; do if [ -e "$n" ]; then cat "$n"; fi; done >topology'
MARKS = ("stopped", "parked", "doubtful")  # files named after instances: on purpose, and by the watchdog
PAST_STARTS = 10  # lines of the audit log: commands that started engines
TOOLS = ("docker", "curl", "rsync", "ssh", "ssh-keygen", "ss", "flock", "sha256sum", "systemd-run", "awk")


@dataclass(frozen=True)
class Request:
    """One URL for curl. `key`: sent with the bearer key; `socket`: over Docker's socket."""

    name: str
    url: str
    key: bool = False
    socket: bool = False
    seconds: int = 4


def _curl(fleet: Fleet, requests: Iterable[Request]) -> str:
    """One curl for all, configured on its standard input so that the key is never an argument."""
    blocks = []
    for request in requests:
        lines = [f'url = "{request.url}"', f'output = "{request.name}"', f"max-time = {request.seconds}"]
        lines += ["connect-timeout = 2", "silent"]
        lines.append(f'write-out = "{request.name} %{{http_code}} %{{exitcode}}\\n"')
        if request.socket:
            lines.append('unix-socket = "/run/docker.sock"')
        text = words(["printf", "%s\n", "\n".join(lines)])
        if request.key:
            text += '; printf \'header = "Authorization: Bearer %s"\\n\' "$key"'
        blocks.append(text)
    read_key = f"key=$(cat {quote(paths.api_key(fleet))} 2>/dev/null || true)"
    joined = "; echo next; ".join(blocks)
    return f"{read_key}; {{ {joined}; }} | curl -q -s -Z --parallel-max 64 -K - >http"


def _units(fleet: Fleet, machine: Machine) -> list[str]:
    names = [f"{instance.name}.service" for instance in fleet.on(machine.id)] + ["docker.service"]
    if machine.id == fleet.inventory.balancer.machine:
        names.append(f"{fleet.inventory.balancer.unit}.service")
    return names


def _instance_files(fleet: Fleet, machine: Machine) -> str:
    """The units of its instances, whole: whether one was edited by hand is seen from its own header."""
    names = [str(paths.unit(instance.name)) for instance in fleet.on(machine.id)]
    # Each with its name above it; the last one is there so that the end of the one before is certain.
    return f"tail -v -n +1 -- {words([*names, '/dev/null'])} >unit-files 2>/dev/null"


def _other_files(fleet: Fleet, machine: Machine) -> list[str]:
    """What is compared by its hash: the balancer's unit, the watchdog."""
    files = [str(path) for path in paths.watchdog_files(fleet)]
    if machine.id == fleet.inventory.balancer.machine:
        files += map(str, (paths.unit(fleet.inventory.balancer.unit), paths.alone(fleet), paths.others(fleet)))
        files += map(str, (paths.old_key(fleet), paths.applied(fleet)))
    return files


def _requests(fleet: Fleet, machine: Machine) -> list[Request]:
    found = [Request("docker-containers", "http://d/containers/json?all=1", socket=True)]
    for instance in fleet.on(machine.id):
        base = f"http://{instance.address}"
        found.append(Request(f"health-{instance.index}", f"{base}/health"))
        found.append(Request(f"models-{instance.index}", f"{base}/v1/models", key=True))
    balancer = fleet.inventory.balancer
    if machine.id == balancer.machine:
        found.append(Request("balancer-state", f"http://127.0.0.1:{balancer.state_listen}/state"))
    return found


def _hashes(files: Iterable[str]) -> str:
    return f"sha256sum -- {words(sorted(files))} >files 2>/dev/null"


def _timer(fleet: Fleet) -> str:
    return f"{paths.watchdog_unit(fleet)}.timer"


def _show(unit_names: list[str]) -> str:
    return f"systemctl show -p {UNIT_PROPERTIES} {words(unit_names)} >units"


def _state(fleet: Fleet) -> list[str]:
    """Releases, our units, instances stopped on purpose and transient jobs: cheap, wanted by every command."""
    header = quote(f"# fleet={fleet.name} ")
    marks = " ".join(f'"$k"/{mark}/*' for mark in MARKS)
    return [
        f"if [ -e {quote(paths.release(fleet))} ]; then cat {quote(paths.release(fleet))} >release; fi",
        f"if [ -e {quote(paths.experiment(fleet))} ]; then cat {quote(paths.experiment(fleet))} >experiment; fi",
        f'k={quote(paths.state(fleet))}; for f in {marks}; do if [ -e "$f" ]; then '
        'printf "%s\\t%s\\n" "${f#"$k"/}" "$(cat "$f")"; fi; done >marks',
        f'for f in {paths.job_progress(paths.job(fleet, "*"))}; do if [ -e "$f" ]; then n=${{f##*/}}; '
        'printf "%s\\t%s\\t%s\\n" "${n%.progress}" "$(cat "${f%.progress}.result" 2>/dev/null)" "$(tail -n 1 "$f")"; '
        "fi; done >progress",
        f"{releases(fleet)} >releases 2>/dev/null",
        f"(cd {paths.SYSTEMD} && grep -HsF -- {header} *.service) >own-units 2>/dev/null",
        fleet_lock.probe(fleet),
    ]


def _balancer(fleet: Fleet, machine: Machine) -> list[str]:
    """Its table, and which of its files are not as they were applied."""
    if machine.id != fleet.inventory.balancer.machine:
        return []
    path, listed = quote(paths.peers(fleet)), quote(paths.applied(fleet))
    # No answer at all, though something is wrong: there is no list, or it is none.
    check = f"LC_ALL=C sha256sum -c --quiet {listed} >balancer-files 2>/dev/null"
    return [
        f"if [ -e {path} ]; then cat {path} >peers; fi",
        f"{check} || [ -s balancer-files ] || rm -f balancer-files",
    ]


def releases(fleet: Fleet) -> str:
    """The releases that proved good, each file with its name above it: of half a file only itself is lost."""
    return f"tail -v -n +1 -- {quote(paths.releases(fleet))}/*.json /dev/null"


def _assemble(background: list[str], foreground: list[str]) -> str:
    lines = [
        "set -u",
        "d=$(mktemp -d /run/fleetctl-probe.XXXXXX) || exit 1",
        "trap 'rm -rf \"$d\"' EXIT",
        'cd "$d"',
    ]
    lines += [f"( {line} ) &" for line in background]
    lines += foreground
    lines += ["wait", 'for f in *; do printf "' + MARK + ' %s\\n" "$f"; cat "$f"; echo; done', "exit 0"]
    return "\n".join(lines) + "\n"


def status(fleet: Fleet, machine: Machine, *, npu: bool = False) -> str:
    """What `status` asks: units, containers, health, balancer, file hashes. With `npu`, who holds the accelerators."""
    names = _units(fleet, machine)
    background = [_curl(fleet, _requests(fleet, machine)), _show([*names, _timer(fleet)])]
    if npu:
        background.append(NPU)
    foreground = [_instance_files(fleet, machine), TOPOLOGY, *_state(fleet), *_balancer(fleet, machine)]
    return _assemble(background, foreground)


def state(fleet: Fleet, machine: Machine) -> str:
    """What says whether a machine is as desired: all of `status`, image, model, files, jobs, what is to be cleaned."""
    background, hashes, foreground = _parts(fleet, machine)
    return _assemble(background, [hashes, TOPOLOGY, *foreground])


def full(fleet: Fleet, machine: Machine) -> str:
    """`state` and everything that the checks before a change look at: devices, ports, disks, tools, ways."""
    more = [Request("docker-info", "http://d/info", socket=True)]
    background, hashes, foreground = _parts(fleet, machine, more)
    background[0] += f"; {_docker_disk()}"
    hashes += f"; grep -h '\"starts\":' {quote(paths.audit(fleet))} 2>/dev/null | tail -n {PAST_STARTS} >starts"
    background += [f"{NPU}; {NPU_OWNERS}", _listeners(), _reach(fleet, machine)]
    return _assemble(background, [hashes, *foreground, *_machine(fleet, machine)])


def _parts(fleet: Fleet, machine: Machine, more: Iterable[Request] = ()) -> tuple[list[str], str, list[str]]:
    """Of `state`: what runs side by side, the file hashes, and what follows one after the other."""
    names = _units(fleet, machine)
    requests = [*_requests(fleet, machine), *more]
    requests.append(Request("docker-image", f"http://d/images/{fleet.image}/json", socket=True))
    background = [
        _curl(fleet, requests),
        f"{_show([*names, _timer(fleet)])}; {_foreign_units(machine)}",
        _model(fleet),
        f"systemctl list-units --all --plain --no-legend {quote(paths.job(fleet, '*'))} >jobs",
    ]
    files = [*_other_files(fleet, machine), str(paths.api_key(fleet))]
    files += [str(paths.job_script(paths.job(fleet, what))) for what in ("image", "model", "manifest")]
    foreground = [*_state(fleet), *_balancer(fleet, machine), _instance_files(fleet, machine), "date +%s >now"]
    foreground.append(f"cat {quote(paths.images(fleet))} >brought 2>/dev/null")
    foreground.append(f"stat -c '%a %u' {quote(paths.api_key(fleet))} >key-mode 2>/dev/null")
    tags = quote(f"fleetctl-transfer:{fleet.name}-[0-9]*-[a-z]*$")
    keys = "/root/.ssh/authorized_keys /home/*/.ssh/authorized_keys"
    foreground.append(f"grep -ho {tags} {keys} 2>/dev/null | cut -d: -f2 | sort -u >transfers")
    if machine.id != fleet.inventory.balancer.machine:
        return background, _hashes(files), foreground
    from fleetctl.balancer import config

    files.append(str(paths.logrotate(fleet)))
    installed = f"find {quote(paths.balancer(fleet))} -type f -exec sha256sum {{}} + >>files 2>/dev/null"
    background.append(f"{{ {config.detect_script().rstrip().rstrip(';')}\n}} >flavour 2>/dev/null")
    return background, f"{_hashes(files)}; {installed}", foreground


def _foreign_units(machine: Machine) -> str:
    """Units that the inventory lists to clean, loaded or only on disk."""
    patterns = [p if p.endswith(".service") else f"{p}.service" for p in machine.clean.units]
    if not patterns:
        return ":"
    listing = f"systemctl list-unit-files --no-legend --plain {words(patterns)}; "
    listing += f"systemctl list-units --all --no-legend --plain {words(patterns)}"
    return f"{{ {listing}; }} 2>/dev/null | awk '{{print $1}}' | grep '[.]service$' | sort -u >foreign-units"


def _listeners() -> str:
    """Who listens where, with the cgroup of each process: that names its unit or container."""
    pids = "grep -o 'pid=[0-9]*' listeners | cut -d= -f2 | sort -u"
    each = 'printf "%s %s %s\\n" "$p" "$(readlink /proc/$p/exe)" "$(tr "\\n" " " </proc/$p/cgroup)"'
    return f"ss -Hltnp >listeners; for p in $({pids}); do {each}; done >owners 2>/dev/null"


def _model(fleet: Fleet) -> str:
    model, manifest = quote(fleet.inventory.model.path), quote(paths.manifest(fleet))
    partial = quote(paths.model_versions(fleet) / "partial")
    versions = f"ls -1tr {quote(paths.model_versions(fleet))} 2>/dev/null | grep -vE '^(partial|verified|link)$'"
    return (
        f"{body('model_files')}{{ if [ -d {partial} ]; then echo arrived $(du -sb {partial} | cut -f1); fi; "
        f"if [ -e {manifest} ]; then echo manifest $(sha256sum <{manifest} | cut -d' ' -f1); fi; "
        f"echo verified $(cat {manifest}.verified 2>/dev/null); "
        f"echo since $(stat -c %Y {manifest}.verified 2>/dev/null); "
        f"echo version $(readlink {model} | sed 's#.*/##'); "
        f"echo versions $({versions}); "
        f"if [ -d {model} ]; then cd {model}; echo listing $(stamp_here); echo size $(du -sbL . | cut -f1); fi; "
        '} >"$d/model"'
    )


def _reach(fleet: Fleet, machine: Machine) -> str:
    """Can this machine open the ports it will need? Refused is reached: nothing listens there yet; but for sshd."""
    inventory = fleet.inventory
    targets: list[str] = []
    if machine.id != inventory.source:
        targets.append(f"{fleet.machines[inventory.source].address} 22")
    if machine.id == inventory.balancer.machine:
        targets += [f"{i.host} {i.port}" for i in fleet.instances if i.index == 0]
    if not targets:
        return ":"
    probe = (
        'while read -r h p; do case $h in *:*) u="[$h]";; *) u=$h;; esac; '
        'e=$(curl -q -s -o /dev/null -m 3 --connect-timeout 2 --http0.9 -w "%{exitcode} %{errormsg}" "http://$u:$p/"); '
        'if [ "$p ${e%% *}" != "22 7" ]; then case $e in 7*efused*|7*"connect to server"*) continue ;; esac; fi; '
        'case $e in 7*|28*|6*) echo "$h:$p ${e#* }" ;; esac; done >reach'
    )
    return f"printf '%s\\n' {words(targets)} | {{ {probe}; }}"


def _machine(fleet: Fleet, machine: Machine) -> list[str]:
    accelerator = fleet.inventory.accelerator
    wanted = [*ascend.nodes(accelerator), *ascend.mounts(accelerator)]
    checks = [
        f'for p in {words(wanted)}; do if [ ! -e "$p" ]; then echo "$p"; fi; done >missing',
        f'for t in {words(TOOLS)}; do command -v "$t" >/dev/null || echo "$t"; done >tools',
        TOPOLOGY,
        f"{{ cat {quote(accelerator.driver)}/version.info; }} >driver 2>/dev/null || rm -f driver",
        _disk("disk-model", str(fleet.inventory.model.path.parent)),
        _disk("disk-state", "/var/lib"),
        "cat /etc/ssh/ssh_host_*_key.pub >host-keys 2>/dev/null || true",
    ]
    if machine.id != fleet.inventory.source:
        source = quote(fleet.machines[fleet.inventory.source].address)
        checks.append(
            f"way=$(ip -o route get {source} 2>/dev/null | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p'); "
            'cat "/sys/class/net/$way/speed" >link 2>/dev/null || true'
        )
    if machine.id == fleet.inventory.source:
        model = fleet.inventory.model.path
        checks.append(
            f"if [ -e {quote(model / 'config.json')} ]; then cat {quote(model / 'config.json')} >model-config; fi"
        )
        checks.append(f"if [ -e {quote(model / 'quant_model_description.json')} ]; then : >model-described; fi")
    return checks


def _docker_disk() -> str:
    """Of the folder that the engine says it keeps images in; after its answer is there."""
    root = 'sed -n \'s/.*"DockerRootDir":"\\([^"]*\\)".*/\\1/p\' docker-info 2>/dev/null'
    return f"p=$({root}); p=${{p:-/var/lib/docker}}; {_space('disk-docker')}"


def _disk(name: str, path: str) -> str:
    return f"p={quote(path)}; {_space(name)}"


def _space(name: str) -> str:
    """Free space where $p is or would be: the nearest folder above it that exists."""
    nearest = 'while [ ! -d "$p" ]; do p=${p%/*}; p=${p:-/}; done'
    return f'{nearest}; {{ df -PB1 "$p" | tail -n 1; df -Pi "$p" | tail -n 1; }} >{name}'
