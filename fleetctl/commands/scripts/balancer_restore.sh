# balancer_restore FOLDER UNIT LIST: the files before the last balancer_apply are back and loaded, and LIST is theirs. Says
# what the log said.
folder=$1 unit=$2 list=$3
tail -n 5 /var/log/fleetctl/*/error.log 2>/dev/null || true
if [ -e "$folder.previous/nginx.conf" ]; then
	cp -a "$folder.previous/." "$folder/"
	mv -f "$list.previous" "$list" 2>/dev/null || rm -f "$list"
	systemctl reload "$unit" || systemctl restart "$unit"
	echo "the configuration before this one is back and loaded"
else
	echo "there was no configuration before this one"
fi
