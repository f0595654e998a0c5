# verify_reload UNIT: a graceful reload; ends when new workers have taken over from the old ones.
unit=$1
workers() {
	main=$(systemctl show -p MainPID --value "$unit")
	for status in /proc/[0-9]*/status; do
		awk -v main="$main" '/^Pid:/ { pid = $2 } /^PPid:/ { if ($2 == main) print pid }' "$status" 2>/dev/null || true
	done | sort
}
before=$(workers)
systemctl reload "$unit"
tries=0
while [ "$tries" -lt 50 ]; do
	for worker in $(workers); do
		case " $(echo "$before" | tr '\n' ' ') " in
		*" $worker "*) ;;
		*)
			# nginx tells the old workers to go a tenth of a second after it has started the new ones.
			sleep 1
			exit 0
			;;
		esac
	done
	sleep 0.2
	tries=$((tries + 1))
done
echo "no new worker of $unit within 10 s of the reload" >&2
exit 1
