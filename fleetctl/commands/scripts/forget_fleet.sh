# forget_fleet ETC STATE: the key and what is known of releases are gone. What was saved, the audit log, and what says
# which image and model these are stays.
etc=$1 state=$2
rm -rf "$etc"
for file in "$state"/* "$state"/.[!.]*; do
	case ${file##*/} in
	saved | audit.log | audit.log.1 | manifest | images) ;;
	*) rm -rf "$file" ;;
	esac
done
