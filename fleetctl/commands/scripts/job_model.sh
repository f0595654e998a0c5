# job_model SOURCE REMOTE MODEL MANIFEST FOLDER: fetches the model into a side folder, checks every byte against the
# manifest, and only then gives it its name. The transfer's private key ends with the job, however it ends.
source=$1 remote=$2 model=$3 manifest=$4 folder=$5
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' TERM INT HUP
partial="$model.partial"
mkdir -p "$partial"
tries=0
until rsync -rlt --delete --partial --inplace --info=progress2 --outbuf=N \
	-e "ssh -i $folder/key -o UserKnownHostsFile=$folder/known_hosts -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes -o BatchMode=yes -o IdentitiesOnly=yes -o HostKeyAlias=fleetctl-source -o ConnectTimeout=8 -o ServerAliveInterval=5 -o ServerAliveCountMax=2" \
	"$source:$remote/" "$partial/"; do
	code=$?
	tries=$((tries + 1))
	case $code in
	10 | 12 | 30 | 35 | 255) ;;
	*)
		echo "rsync ended with $code" >&2
		exit "$code"
		;;
	esac
	if [ "$tries" -ge 30 ]; then exit "$code"; fi
	sleep 2
done
cd "$partial"
echo "verifying"
if ! sha256sum --quiet --strict -c "$manifest" >"$folder/bad" 2>&1; then
	echo "not the source's bytes: $(head -n 3 "$folder/bad" | tr '\n' ' ')" >&2
	exit 1
fi
if [ -e "$model" ]; then
	rm -rf "$model.previous"
	mv "$model" "$model.previous"
fi
mv "$partial" "$model"
cd "$model"
stamp=$(find . -type f -printf '%P\t%s\t%T@\n' | LC_ALL=C sort | sha256sum | cut -d' ' -f1)
printf '%s %s\n' "$(sha256sum <"$manifest" | cut -d' ' -f1)" "$stamp" >"$manifest.verified.new"
mv -f "$manifest.verified.new" "$manifest.verified"
echo "complete"
