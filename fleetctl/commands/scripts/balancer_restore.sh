# balancer_restore FOLDER UNIT: the files before the last balancer_apply are back and loaded. Says what the log said.
folder=$1 unit=$2
tail -n 5 /var/log/fleetctl/*/error.log 2>/dev/null || true
if [ -e "$folder.previous/nginx.conf" ]; then
	cp -a "$folder.previous/." "$folder/"
	systemctl reload "$unit" || systemctl restart "$unit"
	echo "the configuration before this one is back and loaded"
else
	echo "there was no configuration before this one"
fi
