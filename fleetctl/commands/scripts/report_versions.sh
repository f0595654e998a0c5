# report_versions NAME BALANCER: what this machine is and runs, a line each: key, tab, value; what it does not say is
# left out. NAME: a container to look into, or empty; BALANCER: the balancer's program, or empty.
name=$1 balancer=$2
say() { if [ -n "$2" ]; then printf '%s\t%s\n' "$1" "$2"; fi; }
say os "$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release 2>/dev/null | tr -d '"')"
say kernel "$(uname -r)"
say arch "$(uname -m)"
say cpus "$(getconf _NPROCESSORS_ONLN 2>/dev/null)"
say cpu "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
say memory "$(awk '/^MemTotal:/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
say docker "$(timeout 8 docker version --format '{{.Server.Version}}' 2>/dev/null)"
say systemd "$(systemctl --version 2>/dev/null | sed -n '1s/^systemd \([^ ]*\).*/\1/p')"
if [ -n "$balancer" ]; then say balancer "$("$balancer" -v 2>&1 | sed -n 's/.*version: *//p')"; fi
ip -o addr show scope global 2>/dev/null | awk '$2 !~ /^(docker|br-|veth)/ { printf "address\t%s %s\n", $2, $4 }'
[ -n "$name" ] || exit 0
timeout 30 docker exec -i "$name" python3 - <<'END' 2>/dev/null || true
import glob, importlib.metadata, platform, re
print("python\t" + platform.python_version())
for name in ("vllm", "vllm-ascend", "torch", "torch-npu", "transformers", "triton-ascend"):
    try:
        print(name + "\t" + importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
for pattern in ("latest/version.cfg", "latest/*/ascend_toolkit_install.info", "latest/opp/version.info"):
    texts = [open(path).read() for path in sorted(glob.glob("/usr/local/Ascend/*/" + pattern))]
    found = [re.search(r"(?im)^(?:toolkit_(?:running_)?)?version\s*=\s*\[?([0-9A-Za-z.]+)", text) for text in texts]
    if any(found):
        print("cann\t" + next(match for match in found if match)[1])
        break
END
