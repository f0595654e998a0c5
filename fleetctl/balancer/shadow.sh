# shadow BINARY FOLDER CONFIG VERSION: starts the balancer of FOLDER on free loopback ports, asks it what users will
# ask, and ends it. One line a check; status 1 when one failed. CONFIG, VERSION: what its state document has to say.
# The ports 127.0.0.1:1 and 127.0.0.1:2 in FOLDER/nginx.conf stand for those chosen here.
binary=$1 folder=$2 config=$3 version=$4
pid=
failed=0
# shellcheck disable=SC2317,SC2329
stop() {
	if [ -n "$pid" ]; then
		kill "$pid" 2>/dev/null || true
		wait "$pid" || true
		pid=
	fi
}
# shellcheck disable=SC2317,SC2329
end() {
	stop
	rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' HUP INT TERM

free_port() {
	port=$1
	while ss -Hltn "sport = :$port" | grep -q .; do port=$((port + 1)); done
	echo "$port"
}

check() { # WHAT WANTED SEEN
	if [ "$2" = "$3" ]; then
		echo "ok $1"
	else
		echo "FAILED $1: wanted $2, got $3"
		failed=1
	fi
}

edge=$(free_port $((20000 + $$ % 10000)))
state=$(free_port $((edge + 1)))
sed -i "s/127\.0\.0\.1:1;/127.0.0.1:$edge;/; s/127\.0\.0\.1:1 ssl;/127.0.0.1:$edge ssl;/; s/127\.0\.0\.1:2;/127.0.0.1:$state;/" "$folder/nginx.conf"
scheme=http
if grep -q "listen .* ssl;" "$folder/nginx.conf"; then scheme=https; fi

ask() { curl -s -k -m 5 "$@"; }

if ! problem=$("$binary" -t -q -c "$folder/nginx.conf" 2>&1); then
	echo "FAILED nginx -t: $problem"
	exit 1
fi
echo "ok nginx -t"
"$binary" -c "$folder/nginx.conf" -g 'daemon off;' >"$folder/out" 2>&1 &
pid=$!
tries=0
until document=$(ask "http://127.0.0.1:$state/state") && [ -n "$document" ]; do
	tries=$((tries + 1))
	if [ "$tries" -ge 50 ] || ! kill -0 "$pid" 2>/dev/null; then
		echo "FAILED start: $(tail -n 3 "$folder/out" "$folder/logs/error.log" 2>/dev/null | tr '\n' ' ')"
		exit 1
	fi
	sleep 0.2
done
url=$scheme://127.0.0.1:$edge
check configuration "$config" "$(printf '%s' "$document" | sed 's/"peers".*//' | sed -n 's/.*"config":"\([^"]*\)".*/\1/p')"
check "peers file" "$version" "$(printf '%s' "$document" | sed 's/"peers".*//' | sed -n 's/.*"version":"\([^"]*\)".*/\1/p')"
check "path outside" 404 "$(ask -o /dev/null -w '%{http_code}' "$url/invocations")"
check "metrics from outside" 404 "$(ask -o /dev/null -w '%{http_code}' "$url/metrics")"
check "errors as JSON" 1 "$(ask "$url/invocations" | grep -c '"request_id"')"
check preflight "204 x-stainless-os" "$(ask -o /dev/null -w '%{http_code}' -D "$folder/headers" -X OPTIONS \
	-H 'Origin: https://shadow.invalid' -H 'Access-Control-Request-Method: POST' \
	-H 'Access-Control-Request-Headers: x-stainless-os' "$url/v1/models") $(
		sed -n 's/^[Aa]ccess-[Cc]ontrol-[Aa]llow-[Hh]eaders: *\([^ \r]*\).*/\1/p' "$folder/headers"
	)"
check "health page" yes "$(ask "$url/health" | grep -q '"backends":' && echo yes)"
ask -o /dev/null -H 'Authorization: Bearer shadow-secret' -H 'X-Session-ID: shadow-session' "$url/v1/models"
stop # which writes the rest of the access log
# Once, or more often: a busy machine makes curl ask again.
check "the request is logged" yes "$(grep -q '"method":"GET","path":"/v1/models"' "$folder/logs/access.log" && echo yes)"
check "nothing secret in the logs" 0 "$(cat "$folder"/logs/*.log | grep -c -e shadow-secret -e shadow-session)"
check "no error at start" 0 "$(grep -c -e '\[emerg\]' -e '\[alert\]' -e 'lua entry thread aborted' -e 'failed to run' "$folder/logs/error.log")"
exit "$failed"
