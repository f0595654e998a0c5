# bench_vllm NAME KEY SECONDS MARK WORD...: runs the command in the container NAME, in a folder of its own with standard
# input as prompts.jsonl, and prints the result.json that it leaves behind a line @@result. KEY is the file of the key
# there; MARK is in its environment, so that bench_vllm_stop finds it.
name=$1 key=$2 seconds=$3 mark=$4
shift 4
# The key is read inside: it is in the environment of that process alone, never an argument.
# shellcheck disable=SC2016  # for the shell inside
inside='set -eu
folder=$(mktemp -d)
trap "rm -rf \"$folder\"" EXIT
cd "$folder"
key=$1 seconds=$2 FLEETCTL_BENCH=$3
shift 3
cat >prompts.jsonl
OPENAI_API_KEY=$(cat "$key")
export OPENAI_API_KEY FLEETCTL_BENCH
timeout "$seconds" "$@" >log 2>&1 || { tail -n 5 log >&2; exit 1; }
echo @@result
cat result.json'
docker exec -i "$name" sh -c "$inside" sh "$key" "$seconds" "$mark" "$@"
