# transfer_key FOLDER WHERE: a fresh key pair for one transfer from WHERE, and the ssh configuration that uses it;
# standard input is the pinned known_hosts. Prints the public key.
folder=$1 where=$2
mkdir -p "$folder"
chmod 700 "$folder"
cat >"$folder/known_hosts"
rm -f "$folder/key" "$folder/key.pub"
ssh-keygen -q -t ed25519 -N '' -C fleetctl-transfer -f "$folder/key"
cat >"$folder/config" <<EOF
Host source
	HostName ${where#*@}
	User ${where%%@*}
	IdentityFile $folder/key
	UserKnownHostsFile $folder/known_hosts
	GlobalKnownHostsFile /dev/null
	StrictHostKeyChecking yes
	HostKeyAlias fleetctl-source
	BatchMode yes
	IdentitiesOnly yes
	ConnectTimeout 8
	ServerAliveInterval 5
	ServerAliveCountMax 2
EOF
cat "$folder/key.pub"
