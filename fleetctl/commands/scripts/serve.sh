# serve USER TAG FOLDER MODEL IMAGE: what a transfer's key may do on the source, and nothing else: read this model with
# rsync, this image's layers or archive, and end itself. FOLDER has the programs; the rest is what the client asked for.
user=$1 tag=$2 folder=$3 model=$4 image=$5
refuse() {
	echo "this key may not do that: $1" >&2
	exit 126
}
set -f
# shellcheck disable=SC2086 # words of the request: each is checked, none is evaluated
set -- ${SSH_ORIGINAL_COMMAND:-}
case "${1:-}" in
rsync)
	# Reading only, below the model only (rsync keeps listed names there), links read as the files they point at.
	# rrsync would do, but refuses to follow links, which is how model hubs store their files.
	case "$*" in "rsync --server --sender -"*" . /") ;; *) refuse "$1" ;; esac
	for word; do
		case $word in
		rsync | --server | --sender | --append | --from0 | --files-from=- | . | /) ;;
		--timeout=*[!0-9]* | --bwlimit=*[!0-9]*) refuse "$word" ;;
		--timeout=* | --bwlimit=*) ;;
		-*[!A-Za-z.]*) refuse "$word" ;;
		-*e.*) case ${word%%e.*} in -*[!LRt]*) refuse "$word" ;; esac ;;
		*) refuse "$word" ;;
		esac
		if [ "$word" = / ]; then word=.; fi
		set -- "$@" "$word"
		shift
	done
	cd -- "$model"
	exec "$@"
	;;
layers | config | layer)
	if ! command -v python3 >/dev/null; then
		echo "no python3 on the source" >&2
		exit 3
	fi
	exec python3 -I "$folder/layers.py" "$image" "$@"
	;;
save) exec docker save "$image" ;;
forget) exec sh "$folder/revoke" "$user" "$tag" ;;
*) refuse "${1:-a shell}" ;;
esac
