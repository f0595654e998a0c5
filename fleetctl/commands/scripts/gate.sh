# gate UNIT NAME URL KEY MODEL: one look at a starting instance. Asks for a completion only once /health answers 200.
unit=$1 name=$2 url=$3 key=$4 model=$5
echo "@@fleetctl unit 0"
systemctl show -p ActiveState,SubState,Result,NRestarts,ExecMainStatus,ExecMainStartTimestampMonotonic "$unit"
echo "@@fleetctl container 0"
docker inspect --type container -f '{{.State.Running}} {{.Id}} {{.State.ExitCode}}' "$name" 2>/dev/null || true
health=$(curl -s -o /dev/null -m 5 -w '%{http_code}' "$url/health" || true)
printf '@@fleetctl health 0\n%s\n' "$health"
if [ "$health" != 200 ]; then
	echo "@@fleetctl log 0"
	journalctl -u "$unit" -n 1 --no-pager -o cat 2>/dev/null || true
	exit 0
fi
ask() {
	# The key goes to curl on its standard input: never an argument.
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$key")" | curl -s -K - "$@" || true
}
printf '@@fleetctl models 0\n'
ask -m 5 "$url/v1/models"
printf '\n@@fleetctl unauthorized 0\n'
curl -s -o /dev/null -m 5 -w '%{http_code}\n' "$url/v1/models" || true
echo "@@fleetctl completion 0"
ask -m 60 -H 'Content-Type: application/json' \
	-d "{\"model\":\"$model\",\"max_tokens\":2,\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"1+1=\"}]}" \
	-w '\n%{http_code}\n' "$url/v1/chat/completions"
echo "@@fleetctl npu 0"
timeout 10 npu-smi info 2>/dev/null || true
echo "@@fleetctl pids 0"
docker top "$name" -eo pid 2>/dev/null || true
