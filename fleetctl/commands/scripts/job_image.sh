# job_image SOURCE FOLDER: the image as the source saves it (a forced command of the transfer's key), loaded here.
source=$1 folder=$2
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' TERM INT HUP
mkfifo "$folder/stream"
ssh -i "$folder/key" -o "UserKnownHostsFile=$folder/known_hosts" -o GlobalKnownHostsFile=/dev/null \
	-o StrictHostKeyChecking=yes -o BatchMode=yes -o IdentitiesOnly=yes -o HostKeyAlias=fleetctl-source \
	-o ConnectTimeout=8 -o ServerAliveInterval=5 -o ServerAliveCountMax=2 "$source" save >"$folder/stream" &
sender=$!
docker load --quiet <"$folder/stream"
wait "$sender"
