# verify_why LOG ID...: the lines of the balancer's access log about these requests; what it did not log it does not say.
# nginx writes what it holds once a second: what is not there yet is looked for again.
log=$1
shift
ids=$(printf '"id":"%s"\n' "$@")
for again in 1 2 3; do
	found=$(printf '%s\n' "$ids" | { grep -F -f /dev/fd/3 "$log" 3<&0 0</dev/null || true; } | tail -n 1000)
	if [ "$(printf '%s\n' "$found" | grep -c .)" -ge "$#" ] || [ "$again" = 3 ]; then break; fi
	sleep 1
done
printf '%s\n' "$found"
