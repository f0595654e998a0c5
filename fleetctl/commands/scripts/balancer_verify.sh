# balancer_verify URL KEY: standard input is a list of session ids, one a line; prints the session, status and X-Upstream-Addr.
url=$1 key=$2
while IFS= read -r session; do
	printf 'next\nurl = "%s/v1/models"\nheader = "X-Session-ID: %s"\n' "$url" "$session"
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$key")"
	printf 'output = /dev/null\nmax-time = 15\nwrite-out = "%s %%{http_code} %%header{x-upstream-addr}\\n"\n' "$session"
done | tail -n +2 | curl -s -Z -K - || true
