# verify_why LOG ID...: the lines of the balancer's access log about these requests; what it did not log it does not say.
log=$1
shift
for id in "$@"; do printf '"id":"%s"\n' "$id"; done |
	{ grep -F -f /dev/fd/3 "$log" 3<&0 0</dev/null || true; } | tail -n 1000
