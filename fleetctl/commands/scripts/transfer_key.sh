# transfer_key FOLDER: a fresh key pair for one transfer; standard input is the pinned known_hosts. Prints the public key.
folder=$1
mkdir -p "$folder"
chmod 700 "$folder"
cat >"$folder/known_hosts"
rm -f "$folder/key" "$folder/key.pub"
ssh-keygen -q -t ed25519 -N '' -C fleetctl-transfer -f "$folder/key"
cat "$folder/key.pub"
