# unit_reload UNIT STATE_URL: the running balancer reads its files again. Done when it says that it has; nginx keeps the
# old configuration without a word when the new one does not load. (Without Lua it does not say, and is only asked to.)
unit=$1 url=$2
loaded() { curl -s -m 5 "$url" | sed -n 's/.*"loaded":\([0-9.]*\).*/\1/p'; }
refused() {
	echo "$unit runs on with the configuration it had: $1" >&2
	exit 1
}
before=$(loaded)
systemctl reload "$unit" 2>/dev/null || refused "$(journalctl -u "$unit" -n 4 --no-pager -o cat | tr '\n' ' ')"
[ -n "$before" ] || exit 0
tries=0
while now=$(loaded) && { [ -z "$now" ] || [ "$now" = "$before" ]; }; do
	tries=$((tries + 1))
	[ "$tries" -lt 50 ] || refused "see its error log (fleetctl logs balancer --error)"
	sleep 0.2
done
