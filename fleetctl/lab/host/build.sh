#!/bin/sh
# build.sh WORK BASE HOST LEGACY: makes the images BASE (a Debian with Python, for the engine), HOST (a machine) and
# LEGACY (what machines ran before the fleet) out of one bootstrapped tree. No registry is asked. Run it in a mount
# namespace of its own (`unshare --mount`): what it mounts goes with it, also when it is killed.
set -eu
work=$1 base=$2 host=$3 legacy=$4
here=$(cd "$(dirname "$0")" && pwd)
tree=$work/tree
# A pipe hides that its first half failed; what it leaves is looked at after the second.
pack() { tar -C "$tree" -c --numeric-owner "$@" . || : >"$work/short"; }
whole() { [ ! -e "$work/short" ]; }
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

echo "bootstrapping Debian bookworm"
# libnuma1: a real engine is linked with it (vllm_cpu.py).
debootstrap --variant=minbase --include=python3,libnuma1 bookworm "$tree" >"$work/debootstrap.log" 2>&1 || {
	tail -n 20 "$work/debootstrap.log" >&2
	exit 1
}

# The engine's image is copied from machine to machine, so what no server needs stays out of it.
echo "importing $base"
pack \
	--exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./var/log/*' --exclude='./dev/*' \
	--exclude='./var/cache/debconf/*' --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' \
	--exclude='./usr/share/locale/*' --exclude='./usr/share/info/*' \
	--exclude='./usr/lib/*-linux-gnu/gconv/*' --exclude='./usr/lib/*-linux-gnu/perl*' --exclude='./usr/bin/perl*' \
	--exclude='./usr/share/zoneinfo/*' --exclude='./usr/share/i18n/*' \
	--exclude='./usr/share/perl*' --exclude='./usr/lib/python3*/lib2to3' --exclude='./usr/lib/python3*/pydoc_data' \
	--exclude='./usr/lib/apt' --exclude='./usr/lib/udev' --exclude='./usr/lib/*-linux-gnu/libapt*' |
	docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$base" >/dev/null
whole

echo "adding what a machine has"
printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
chmod 755 "$tree/usr/sbin/policy-rc.d"
mount -t proc proc "$tree/proc"
packages=$(grep -v '^#' "$here/packages.txt" | tr '\n' ' ')
# shellcheck disable=SC2086 # a list of words
chroot "$tree" apt-get install -y --no-install-recommends $packages >"$work/apt.log" 2>&1 || {
	tail -n 20 "$work/apt.log" >&2
	exit 1
}
umount "$tree/proc"
rm -f "$tree/usr/sbin/policy-rc.d"
cp -R "$here/rootfs/." "$tree/"
chmod 755 "$tree"/usr/local/sbin/*
chmod 440 "$tree"/etc/sudoers.d/*

chroot "$tree" /bin/sh -eu <<'END'
useradd --create-home --shell /bin/bash --groups docker,systemd-journal ops
for home in /root /home/ops; do install -d -m 700 "$home/.ssh"; done
chown ops: /home/ops/.ssh
# Debian's rsync ships it; the restricted key of a transfer runs it.
test -x /usr/bin/rrsync
mkdir -p /var/log/journal /data/models /usr/local/dcmi /etc/fleetctl-lab \
	/usr/local/Ascend/driver/lib64/driver /usr/local/Ascend/driver/lab-faults /usr/local/Ascend/driver/lab-devices
printf 'Version=26.0.rc1\nascendhal_version=7.35.23\naicpu_version=1.0\ntdt_version=1.0\n' \
	>/usr/local/Ascend/driver/version.info
for library in libdcmi.so libascend_hal.so libc_sec.so; do
	echo "the lab's stand-in of $library" >/usr/local/Ascend/driver/lib64/driver/$library
done
for library in libdcmi.so dcmi_interface_api.h; do echo "the lab's stand-in of $library" >/usr/local/dcmi/$library; done
systemctl enable -q lab-devices.service docker.service ssh.service
systemctl disable -q nginx.service
systemctl mask -q getty.target console-getty.service systemd-logind.service systemd-timesyncd.service \
	systemd-udevd.service systemd-udev-trigger.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
	e2scrub_all.timer e2scrub_reap.service fstrim.timer
systemctl set-default -q multi-user.target
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id
: >/etc/machine-id
rm -rf /var/lib/docker/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/lib/apt/lists/* \
	/usr/share/doc/* /usr/share/man/* /usr/share/locale/* /usr/share/info/* /var/log/*.log /var/log/apt
END

echo "importing $host"
pack --exclude='./dev/*' |
	docker import --change 'ENV container=docker' --change 'CMD ["/lib/systemd/systemd"]' - "$host" >/dev/null
whole

echo "importing $legacy"
old=$work/legacy
mkdir -p "$old/bin" "$old/etc" "$old/proc" "$old/dev" "$old/sys" "$old/tmp"
cp "$tree/bin/busybox" "$old/bin/busybox"
chroot "$old" /bin/busybox --install -s /bin
# flock is not among busybox's commands; it brings the libraries it is linked with.
chroot "$tree" ldd /usr/bin/flock | grep -o '/lib[^ ]*' | while read -r library; do
	mkdir -p "$old${library%/*}"
	cp -L "$tree$library" "$old$library"
done
cp "$tree/usr/bin/flock" "$old/bin/flock"
cp "$here/legacy/workload" "$old/bin/workload"
chmod 755 "$old/bin/workload"
tar -C "$old" -c --numeric-owner . | docker import --change 'ENV PATH=/bin' --change 'ENTRYPOINT ["/bin/workload"]' \
	- "$legacy" >/dev/null
