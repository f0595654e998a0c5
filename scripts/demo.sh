#!/bin/sh
# demo.sh: the main job, end to end: four machines in the state the first report found, sixteen backends at the end.
# The lab stays up; what to type next is printed.
set -eu
cd "$(dirname "$0")/.."
fleetctl=.venv/bin/fleetctl
source=inventory.yaml

step() { printf '\n== %s\n' "$*"; }

step "fleetctl lab up"
"$fleetctl" lab up --fresh -i "$source"
settings=$("$fleetctl" lab env -i "$source")
# What it prints are exports: from here on every command means the lab.
eval "$settings"

step "fleetctl rollout --mtp 4"
"$fleetctl" rollout --mtp 4 --yes

step "fleetctl status"
"$fleetctl" status

step "three sessions through the balancer, $FLEET_URL"
for session in abc user-1 张三; do
	# The key goes in on standard input: an argument would be seen by everybody on this box.
	address=$(printf 'header = "Authorization: Bearer %s"\n' "$FLEET_API_KEY" |
		curl --silent --show-error --fail --max-time 60 --config - --output /dev/null --dump-header - \
			--header "X-Session-ID: $session" --header 'Content-Type: application/json' \
			--data '{"model": "Qwen3.8-27B-W8A8", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}' \
			"$FLEET_URL/v1/chat/completions" | tr -d '\r' | sed -n 's/^[Xx]-[Uu]pstream-[Aa]ddr: //p')
	[ -n "$address" ] || {
		echo "session $session was not answered by a backend" >&2
		exit 1
	}
	printf '%-8s -> %s\n' "$session" "$address"
done

cat <<END

The lab is up. To use it from this shell:
    eval "\$($fleetctl lab env)"
    $fleetctl status
    $fleetctl lab down
END
