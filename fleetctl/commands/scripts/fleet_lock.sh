# fleet_lock VERB FILE TOKEN LIMIT OVER LINES: the lock of a whole fleet, one file on one machine, gone with a reboot.
#   take     TOKEN holds it from now on, when it is free, held by OVER, or its last heartbeat is older than LIMIT
#   renew    a heartbeat of TOKEN
#   release  TOKEN lets go
#   show     changes nothing
# Prints answer=taken|held|renewed|lost|released|shown, now=TIME and the state as it was found. Times are hundredths of
# a second since this machine booted: nobody sets that clock, and no other machine's is ever compared with it.
verb=$1 file=$2 me=$3 limit=$4 over=$5 lines=$6
if [ "$verb" != show ]; then
	[ -d "${file%/*}" ] || mkdir -p "${file%/*}"
	exec 8>>"$file.guard"
	flock -w 5 8 || {
		echo "the lock's file has been in use for 5 s (see: fuser -v $file.guard)" >&2
		exit 1
	}
fi
read -r now _ </proc/uptime
now=${now%.*}${now#*.}
found='' token='' beat=0
if [ -e "$file" ]; then
	while IFS= read -r line; do
		case $line in
		token=*) token=${line#token=} ;;
		beat=*) beat=${line#beat=} ;;
		esac
		found="$found$line
"
	done <"$file"
fi
age=$((now - beat))

keep() {
	printf '%s\n' "$@" >"$file.new"
	mv -f "$file.new" "$file"
}

# A heartbeat of the future is one of before a reboot that left /run as it was.
free() {
	[ -z "$token" ] || [ "$token" = "$me" ] || [ "$token" = "$over" ] || [ "$age" -gt "$limit" ] || [ "$age" -lt 0 ]
}

answer=lost
case $verb in
take)
	answer=held
	if free; then
		keep "token=$me" "taken=$now" "beat=$now" "$lines"
		answer=taken
	fi
	;;
renew)
	if [ "$token" = "$me" ]; then
		keep "$(printf '%s' "$found" | sed "s/^beat=.*/beat=$now/")"
		answer=renewed
	fi
	;;
release)
	if [ "$token" = "$me" ]; then
		keep "freed=$now" "$lines"
		answer=released
	fi
	;;
show) answer=shown ;;
esac
printf 'answer=%s\nnow=%s\n%s' "$answer" "$now" "$found"
