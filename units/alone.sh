#!/bin/sh
# alone.sh FOLDER: may the balancer of this machine start? Not once another machine has become the fleet's balancer
# (docs/decisions/balancer-move.md). Written by fleetctl, asked by systemd before each start.
#
# FOLDER/balancer-since says of which fleet and since which release this machine is the balancer; the others say it in what
# their /health answers, at the URLs in FOLDER/balancer-others. Who does not answer within seconds is no balancer: machines
# that come back all at once wait for nobody.
set -eu
fleet=$(basename "$1")
mine=$(cat "$1/balancer-since" 2>/dev/null || true)
newest=$(while read -r url; do printf 'url = "%s"\nsilent\ninsecure\nmax-time = 3\nnext\n' "$url"; done <"$1/balancer-others" |
	sed '$d' | curl -q -Z -K - 2>/dev/null | sed -n "s/.*\"since\":\"\\($fleet [^\"]*\\)\".*/\\1/p" | LC_ALL=C sort | tail -n 1)
if [ -z "$newest" ] || [ "$(printf '%s\n%s\n' "$mine" "$newest" | LC_ALL=C sort | tail -n 1)" = "$mine" ]; then exit 0; fi
release=${newest#* }
echo "another machine is the balancer of this fleet since release ${release%%-*}: fleetctl rollout removes this one" >&2
exit 1
