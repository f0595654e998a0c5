# clean_process FOLDER PORT EXECUTABLE: stops, by pid, what listens on PORT if it is EXECUTABLE; anything else stays.
folder=$1 port=$2 executable=$3
mkdir -p "$folder"
holders() {
	ss -Hltnp "sport = :$port" | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -un
}
stop_all() {
	for pid in $(holders); do
		path=$(readlink "/proc/$pid/exe") || continue
		case ${path% (deleted)} in
		"$executable" | */"$executable") ;;
		*)
			echo "port $port is held by $path (pid $pid), not by $executable: left alone" >&2
			exit 1
			;;
		esac
		{
			printf '%s ' "$path"
			# A worker may be gone by now: its master was told first.
			cat "/proc/$pid/cmdline" 2>/dev/null | tr '\0' ' '
			echo
		} >>"$folder/process-$port.txt"
		kill -"$1" "$pid" 2>/dev/null || true
	done
}
for signal in TERM TERM TERM KILL; do
	stop_all "$signal"
	tries=0
	while [ "$tries" -lt 20 ]; do
		if [ -z "$(holders)" ]; then exit 0; fi
		sleep 0.1
		tries=$((tries + 1))
	done
done
echo "port $port is still held after SIGKILL" >&2
exit 1
