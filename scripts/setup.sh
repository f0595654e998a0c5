#!/bin/sh
# setup.sh: makes a bare Debian 12 ready for `make demo` and `make test`: packages, the virtual environment, a Docker
# engine that answers. Run again it only looks. What cannot be had is named, and nothing goes on after that.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
give_up() {
	printf 'setup: cannot go on: %s\n' "$*" >&2
	exit 1
}

[ "$(id -u)" -eq 0 ] || give_up "root is needed (packages, the Docker engine, mounted disks); this is $(id -un)"
command -v apt-get >/dev/null || give_up "no apt-get: this is for Debian 12 or a system like it"

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
have() { command -v "$1" >/dev/null 2>&1; }

# What gives each program; a program that is there already, from wherever, is left as it is.
wanted=''
need() { wanted="$wanted $*"; }
have python3 || need python3
python3 -c 'import venv, ensurepip' 2>/dev/null || need python3-venv
have debootstrap || need debootstrap
have docker || need docker.io
have iptables || need iptables
have mkfs.ext4 || need e2fsprogs
have losetup || need mount
have ip || need iproute2
have curl || need curl
have ssh || need openssh-client
have shellcheck || [ -x .venv/bin/shellcheck ] || need shellcheck
have git || need git
[ -e /etc/ssl/certs/ca-certificates.crt ] || need ca-certificates
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || need debian-archive-keyring
# tests/live runs the real server with the fleet's own Lua.
[ -e /usr/lib/nginx/modules/ngx_http_lua_module.so ] || need nginx-light libnginx-mod-http-lua

# `setup.sh tests`: real sshd processes on loopback, a real browser before the balancer, Lua's own syntax check, and
# the copies' own programs.
if [ "${1:-}" = tests ]; then
	[ -x /usr/sbin/sshd ] || need openssh-server
	have chromium || need chromium
	have rrsync || need rsync
	have luac5.1 || need lua5.1
fi

if [ -n "$wanted" ]; then
	say "installing$wanted"
	log=$(mktemp)
	# A web server that starts because a test needs its program would take port 80.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
		trap 'rm -f "$policy"' EXIT
		trap 'exit 130' INT TERM
	fi
	export DEBIAN_FRONTEND=noninteractive
	# shellcheck disable=SC2086 # a list of words
	if ! { apt-get update -q && apt-get install -y -q --no-remove --no-install-recommends $wanted; } \
		>"$log" 2>&1 </dev/null; then
		tail -n 20 "$log" >&2
		give_up "apt-get could not install$wanted"
	fi
	rm -f "$log"
	case $wanted in *nginx-light*)
		if [ -d /run/systemd/system ]; then systemctl disable -q nginx.service || true; fi
		;;
	esac
fi

python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
	give_up "Python 3.10 or later is needed, this is $(python3 --version)"

stamp=$(sha256sum pyproject.toml | cut -d ' ' -f 1)
if [ ! -x .venv/bin/fleetctl ] || [ "$(cat .venv/.setup 2>/dev/null)" != "$stamp" ]; then
	say "installing fleetctl into .venv"
	[ -x .venv/bin/python ] || python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --editable '.[dev]' ||
		give_up "pip could not install fleetctl and its dependencies"
	printf '%s\n' "$stamp" >.venv/.setup
fi

answers() { timeout 20 docker info >/dev/null 2>&1; }
if ! answers; then
	log=/var/log/dockerd.log
	if [ -d /run/systemd/system ]; then
		say "starting the Docker engine"
		systemctl start docker.service || give_up "docker.service does not start: journalctl -u docker.service"
	else
		have dockerd || give_up "no Docker engine answers and there is no dockerd to start"
		say "starting the Docker engine (log: $log)"
		# There is no init here: a session of its own, so that it outlives this shell.
		setsid dockerd >>"$log" 2>&1 </dev/null &
	fi
	tries=0
	until answers; do
		tries=$((tries + 1))
		if [ "$tries" -ge 60 ]; then
			tail -n 5 "$log" >&2 2>/dev/null || true
			give_up "the Docker engine does not answer after 60 s"
		fi
		sleep 1
	done
fi
say "ready"
