# listing.sh FLEET: all that fleetctl may leave on a machine, one thing a line; what happened when, and what is told
# about it (logs, past releases, saved definitions, the balancer's files before the last change, what the watchdog
# remembers since its timer ran), is left out.
fleet=$1
export LC_ALL=C
docker ps -a --format '{{.Names}} {{.Image}} {{.State}} {{.Label "fleetctl.fleet"}} {{.Label "fleetctl.spec"}}' | sort | sed 's/^/container /'
docker images --no-trunc --format '{{.Repository}}:{{.Tag}} {{.ID}}' | sort | sed 's/^/image /'
for file in $(find /etc/systemd/system -name '*.service' -o -name '*.timer' -o -name '*.conf' | sort); do
	name=$(basename "$file")
	printf 'unit %s %s %s\n' "$name" "$(systemctl is-enabled "$name" 2>/dev/null)" "$(systemctl is-active "$name" 2>/dev/null)"
done | grep -v 'watchdog.*service'
systemctl list-units --all --no-legend --plain "fleetctl-$fleet-*" | awk '{ print "job", $1, $3 }'
{ cat /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys 2>/dev/null || true; } | sort | sed 's/^/authorized /' | cut -c 1-120
find /run/fleetctl -mindepth 1 ! -name '*.progress' ! -path '/run/fleetctl/watchdog*' | sort | sed 's/^/run /'
for folder in /etc/fleetctl /var/lib/fleetctl /var/cache/fleetctl /etc/logrotate.d /etc/systemd/system; do
	find "$folder" -type f -o -type l 2>/dev/null
done | grep -v -e /audit.log -e /releases/ -e /saved/ -e /balancer.previous/ -e /balancer.sha256.previous -e /release.json -e /balancer-since -e /logs/ | sort | while IFS= read -r file; do
	if [ -L "$file" ]; then
		printf 'link %s %s\n' "$file" "$(readlink "$file")"
	else
		# But for the images that the test has planted: of those the last one stays as "the one before".
		printf 'file %s %s %s\n' "$file" "$(stat -c '%a %U' "$file")" "$(grep -av ' old$' "$file" | sha256sum | cut -c 1-16)"
	fi
done
find /data -mindepth 1 -maxdepth 4 ! -path '*/partial/*' -printf 'data %p %s %l\n' 2>/dev/null | grep -v -e lost+found -e '/docker/' -e /var/ | sort
