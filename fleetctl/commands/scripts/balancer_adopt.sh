# balancer_adopt FOLDER UNIT SAVED FLEET STATE_URL: standard input is a tar of a configuration, which takes its place in
# FOLDER. The nginx that runs as UNIT takes it with a reload: its own configuration file, kept in SAVED, then says only
# where ours is. When it is refused, or does not answer as ours, the old file is back and loaded.
folder=$1 unit=$2 saved=$3 fleet=$4 url=$5
pid=$(systemctl show -p MainPID --value "$unit")
exe=$(readlink "/proc/$pid/exe") || exe=
case ${exe##*/} in
nginx | openresty) ;;
*)
	echo "$unit runs ${exe:-nothing}, not nginx: list it in clean.processes instead" >&2
	exit 1
	;;
esac
# nginx shows its arguments as one string; those of -g come last wherever they stood, as long as nobody quotes " -c ".
title=$(tr '\0' ' ' <"/proc/$pid/cmdline")
word() { printf '%s\n' "$title" | sed -n "s/.* -$1 *\([^ ]*\).*/\1/p"; }
prefix=$(word p) file=$(word c) extra=$(printf '%s\n' "$title" | sed -n 's/.* -g *\(.*;\).*/\1/p')
tested() { "$exe" -t ${prefix:+-p "$prefix"} ${file:+-c "$file"} ${extra:+-g "$extra"} 2>&1; }
conf=$(tested | sed -n 's/.*configuration file \(.*\) syntax is ok.*/\1/p')
if [ -z "$conf" ]; then
	echo "what $unit runs does not pass its own test: $(tested | tail -n 2 | tr '\n' ' ')" >&2
	exit 1
fi
mkdir -p "$folder" "$saved" "/var/log/fleetctl/$fleet" /run/fleetctl
tar -x -f - -C "$folder" --no-same-owner
if [ "$conf" != "$folder/nginx.conf" ] && [ "$(cat "$conf")" != "include $folder/nginx.conf;" ]; then
	"$exe" -T ${prefix:+-p "$prefix"} -c "$conf" >"$saved/nginx.whole.conf" 2>/dev/null || true
	cp -p "$conf" "$saved/nginx.conf"
	chmod -R go= "$saved" # a configuration by hand may have the key in it
	printf 'include %s/nginx.conf;\n' "$folder" >"$conf"
fi
back() {
	if [ -e "$saved/nginx.conf" ]; then cat "$saved/nginx.conf" >"$conf"; fi
	kill -HUP "$pid"
	echo "$1; the configuration by hand is back ($conf)" >&2
	exit 1
}
if ! said=$(tested); then back "$unit refuses our configuration: $(printf '%s' "$said" | tail -n 2 | tr '\n' ' ')"; fi
kill -HUP "$pid"
tries=0
until curl -fs -m 2 -o /dev/null "$url"; do
	tries=$((tries + 1))
	if [ "$tries" -ge 100 ]; then back "$unit did not load our configuration within 20 s"; fi
	sleep 0.2
done
