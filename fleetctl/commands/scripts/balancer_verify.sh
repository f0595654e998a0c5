# balancer_verify URL KEY SESSION...: asks once as each session; prints session, status and X-Upstream-Addr, a line each.
url=$1 key=$2
shift 2
for session in "$@"; do
	# Inside curl's quotes a backslash and a quote are escaped.
	escaped=$(printf '%s' "$session" | sed 's/[\\"]/\\&/g')
	printf 'next\nurl = "%s/v1/models"\nheader = "X-Session-ID: %s"\n' "$url" "$escaped"
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$key")"
	printf 'output = /dev/null\nsilent\nmax-time = 15\nwrite-out = "%%{http_code} %%header{x-upstream-addr}\\n"\n'
done | tail -n +2 | curl -q -s -K - | awk '{ print NR - 1, $0 }' || true
