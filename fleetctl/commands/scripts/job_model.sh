# job_model FOLDER MODEL MANIFEST STREAMS LIMIT: fetches the files of MANIFEST from the host `source` of FOLDER's ssh
# configuration, side by side in STREAMS, at most LIMIT KiB/s (0: no limit), resuming at the byte; checks each as soon
# as it is whole; and only when all are as they should be gives the folder its name. Files that some version here has
# already are linked. FOLDER, which has the transfer's key, ends with the job, however it ends.
folder=$1 model=$2 manifest=$3 streams=$4 limit=$5
PATIENCE=900 # seconds without a byte until the source counts as lost
REFUSALS=5   # of the transfer's key, with no byte in between
SOURCE_CHANGED=65 SOURCE_LOST=69
work=$(mktemp -d "$folder/work.XXXXXX") # a job that is killed leaves nothing: FOLDER ends with its unit
versions="$(dirname "$model")/.$(basename "$model").fleetctl"
pids=
finish() {
	rc=$?
	for pid in $pids; do kill "$pid" 2>/dev/null || true; done
	if [ -n "$forgetting" ]; then wait "$forgetting" || true; else forget; fi
	# Whichever write it was that failed: its program need not have said why.
	if [ "$rc" -ne 0 ] && [ "$(df --output=avail -B1M "$versions" | tail -n 1)" -eq 0 ]; then
		echo "the disk is full: No space left on device below $versions" >&2
	fi
	rm -rf "$folder"
	exit "$rc"
}
uptime_seconds() { cut -d. -f1 /proc/uptime; } # a clock may be set
forgetting=
forget() { ssh -F "$folder/config" -o ConnectTimeout=3 source forget </dev/null >/dev/null 2>&1 || true; }
trap finish EXIT
trap 'exit 1' TERM INT HUP
# As it is now: another command may replace it while this one goes on.
kept=$manifest
cp "$manifest" "$work/manifest"
manifest=$work/manifest
partial="$versions/partial"
mkdir -p "$partial"
cd "$partial"
total=$(awk '{ s += $2 } END { printf "%.0f", s }' "$manifest")

# What is in the manifest comes as `SIZE PATH`; the wanted ones are those that are not known to be right.
known() { # lines of `verified` whose file is as it was then
	files_here >"$work/here"
	awk 'FILENAME == ARGV[1] { here[$0] = 1; next }
		{ key = $0; sub(/^[^ ]+ /, "", key); if (key in here) print }' "$work/here" "$versions/verified" >"$work/known"
	awk 'FILENAME == ARGV[1] { path = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", path); good[$1 " " $2 " " path] = 1; next }
		!($0 in good)' "$work/known" "$manifest" >"$work/wanted"
}
# Notes of files that are not here any more: what comes in their place may have the same size and time.
forget_gone() {
	known
	cp "$work/known" "$versions/verified"
}
# arrived: files that have their whole size and have not been looked at since they have it, as `SIZE MTIME PATH`.
arrived() {
	known
	touch "$work/bad"
	awk 'FILENAME == ARGV[1] { path = $0; sub(/^[^ ]+ /, "", path); want[path] = 1; next }
		FILENAME == ARGV[2] { bad[$0] = 1; next }
		{ path = $0; sub(/^[^ ]+ [^ ]+ /, "", path); if (($1 " " path) in want && !($0 in bad)) print }' \
		"$work/wanted" "$work/bad" "$work/here"
}
# check_arrived: reads them; the right ones are noted in `verified`, the others in `bad` as they were read.
check_arrived() {
	arrived >"$work/arrived"
	if [ ! -s "$work/arrived" ]; then return 0; fi
	hashed "$(nproc)" <"$work/arrived" >"$work/read"
	awk -v good="$versions/verified" -v bad="$work/bad" '
		FILENAME == ARGV[1] { want[$0] = 1; next }
		{ path = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", path); line = $0; sub(/^[^ ]+ /, "", line)
			if (($1 " " $2 " " path) in want) print >>good; else print line >>bad }' "$manifest" "$work/read"
}
arrived_bytes() { find -L . -type f -printf '%s\n' | awk '{ s += $1 } END { printf "%.0f", s }'; }
link_from() { # link_from VERSION: files of the right size that are missing here, linked; they are checked like any other
	known
	awk '{ line = $0; sub(/^[^ ]+ /, "", line); print line }' "$work/wanted" | while IFS= read -r line; do
		printf '%s\n' "${line#* }" | unescaped >"$work/name"
		path=$(tr '\0' '/' <"$work/name") path=${path%/}
		if [ -e "./$path" ] || [ ! -f "$1/$path" ]; then continue; fi
		if [ "$(stat -L -c %s "$1/$path")" != "${line%% *}" ]; then continue; fi
		mkdir -p "./$(dirname -- "$path")"
		ln -L "$1/$path" "./$path" 2>/dev/null || true
	done
}
fetch() { # one round: what is missing or short, over all streams, the longest first, while arrivals are checked
	known
	rm -f "$work"/list.* "$work"/rc.*
	sort -k 2,2nr "$work/wanted" | awk -v n="$streams" -v base="$work/list." '
		FILENAME == ARGV[1] { size = $1; path = $0; sub(/^[^ ]+ [^ ]+ /, "", path); here[path] = size; next }
		{ path = $0; sub(/^[^ ]+ [^ ]+ /, "", path); left = $2
			if (path in here) { left -= here[path]; if (left <= 0) next }
			best = 1; for (i = 2; i <= n; i++) if (load[i] < load[best]) best = i
			load[best] += left; print path >(base best) }' "$work/here" -
	if ! ls "$work"/list.* >/dev/null 2>&1; then sleep 1; fi # only what is whole and wrong: the next round fetches it
	lists=$(find "$work" -name 'list.*' | wc -l)
	each=$((limit / (lists > 0 ? lists : 1)))
	running=
	for list in "$work"/list.*; do
		[ -e "$list" ] || continue
		unescaped <"$list" >"$list.names"
		{
			rc=0
			rsync -Lt --no-protect-args --append --bwlimit="$each" --from0 --files-from="$list.names" --timeout=60 \
				-e "ssh -F $folder/config" source:/ . >/dev/null 2>"$list.err" || rc=$?
			echo "$rc" >"$work/rc.${list##*.}"
		} &
		running="$running $!"
	done
	pids="$running $teller"
	turn=0
	for pid in $running; do
		while kill -0 "$pid" 2>/dev/null; do
			if [ $((turn % 20)) -eq 0 ]; then check_arrived; fi
			turn=$((turn + 1))
			sleep 0.1
		done
		wait "$pid" || true
	done
	pids=$teller
	check_arrived
}

touch "$versions/verified" "$work/refused"
forget_gone
# What other versions are linked to is linked anew: a file that grows here must be nobody else's.
find . -type f -links +1 -exec rm -f {} +
# What is too long, or not in the manifest, is of another version.
awk '{ path = $0; sub(/^[^ ]+ [^ ]+ /, "", path); print $2, path }' "$manifest" >"$work/sizes"
files_here | awk 'FILENAME == ARGV[1] { path = $0; sub(/^[^ ]+ /, "", path); size[path] = $1; next }
	{ path = $0; sub(/^[^ ]+ [^ ]+ /, "", path); if (!(path in size) || $1 + 0 > size[path] + 0) print path }' \
	"$work/sizes" - | unescaped | xargs -0 -r rm -f --
echo "checking what is here already"
for version in "$model" "$versions"/*; do
	if [ -d "$version" ] && [ "$version" != "$partial" ]; then link_from "$version"; fi
done
check_arrived
{ while sleep 1; do echo "bytes $(arrived_bytes) $total copying"; done; } &
teller=$!
# What has arrived goes to the disk meanwhile, so that the last file does not wait for gigabytes before it.
{ while sleep 2; do find . -type f -exec sync -d {} + 2>/dev/null || true; done; } &
teller="$teller $!"
pids=$teller
last=$(uptime_seconds) had=-1 unread=0
while :; do
	known # not in the condition: there, a failure would end the loop as if nothing were missing
	if [ ! -s "$work/wanted" ]; then break; fi
	# Whole and wrong: another version's bytes, or spoilt. The second time it is the source that has other bytes.
	awk '{ path = $0; sub(/^[^ ]+ [^ ]+ /, "", path) }
		FILENAME == ARGV[1] { bad[$0] = 1; next }
		FILENAME == ARGV[2] { size[path] = $2; next }
		$0 in bad || (path in size && $1 + 0 > size[path] + 0) { print path }' \
		"$work/bad" "$work/wanted" "$work/here" >"$work/wrong"
	if [ -s "$work/wrong" ]; then
		if grep -qxFf "$work/wrong" "$work/again" 2>/dev/null; then
			echo "the source's $(head -n 1 "$work/wrong") is not what its manifest says: it changed since" >&2
			exit "$SOURCE_CHANGED"
		fi
		cat "$work/wrong" >>"$work/again"
		unescaped <"$work/wrong" | xargs -0 -r rm -f --
		: >"$work/bad"
		forget_gone
	fi
	fetch
	# Nothing was asked for: what is wanted is all here, and was read just now, or could not be.
	if ls "$work"/rc.* >/dev/null 2>&1; then unread=0; else unread=$((unread + 1)); fi
	if [ "$unread" -gt 3 ]; then
		echo "$(arrived | head -n 1 | cut -d' ' -f3-) arrived and cannot be read below $versions" >&2
		exit 1
	fi
	now=$(arrived_bytes)
	if [ "$now" != "$had" ]; then last=$(uptime_seconds) had=$now; fi
	for rc in "$work"/rc.*; do
		[ -e "$rc" ] || continue
		case $(cat "$rc") in
		0) ;;
		10 | 12 | 20 | 30 | 35 | 255)
			if [ $(($(uptime_seconds) - last)) -gt "$PATIENCE" ]; then
				echo "the source has sent nothing for $PATIENCE s: $(grep -m 1 . "$work/list.${rc##*.}.err")" >&2
				exit "$SOURCE_LOST"
			fi
			# A source whose sshd starts or is full says it too, for a while; one that has lost the key says nothing else.
			refusal=$(grep -m 1 -e 'Permission denied (' -e 'Host key verification failed' "$work/list.${rc##*.}.err" || true)
			if [ -n "$refusal" ]; then echo "$now" >>"$work/refused"; fi
			if [ "$(grep -cx "$now" "$work/refused")" -gt "$REFUSALS" ]; then
				echo "there is no way into the source: $refusal" >&2
				exit "$SOURCE_LOST"
			fi
			echo "$(grep -m 1 . "$work/list.${rc##*.}.err"): trying again" >&2
			sleep 2
			;;
		23 | 24)
			if grep -q 'No space left' "$work/list.${rc##*.}.err"; then
				grep -m 1 'No space left' "$work/list.${rc##*.}.err" >&2
				exit 1
			fi
			echo "missing" >>"$work/missing"
			if [ "$(wc -l <"$work/missing")" -gt 1 ]; then
				echo "the source does not give what its manifest says: $(head -n 1 "$work/list.${rc##*.}.err")" >&2
				exit "$SOURCE_CHANGED"
			fi
			;;
		*)
			echo "rsync ended with $(cat "$rc"): $(tail -n 2 "$work/list.${rc##*.}.err" | tr '\n' ' ')" >&2
			exit 1
			;;
		esac
	done
	# Every stream ended well, and still something is short: the source has no more of it.
	if ls "$work"/rc.* >/dev/null 2>&1 && ! grep -qvx 0 "$work"/rc.*; then
		known
		awk '{ path = $0; sub(/^[^ ]+ [^ ]+ /, "", path) }
			FILENAME == ARGV[1] { here[path] = $1; next }
			!(path in here) || here[path] + 0 < $2 + 0 { print path }' "$work/here" "$work/wanted" >"$work/short"
		if [ -s "$work/short" ]; then
			echo "the source's $(head -n 1 "$work/short") is shorter than its manifest says: it changed since" >&2
			exit "$SOURCE_CHANGED"
		fi
	fi
done
if ! cmp -s "$manifest" "$kept"; then
	echo "another version is wanted since this copy began: what has arrived is the start of that" >&2
	exit "$SOURCE_CHANGED"
fi
forget & # nothing more is asked of the source
forgetting=$!
find . -type d -empty -delete
sync -f .
name=$(sha256sum <"$manifest" | cut -c 1-16)
target="$versions/$name" count=0
while [ -e "$target" ]; do count=$((count + 1)) target="$versions/$name.$count"; done
cd "$versions"
mv "$partial" "$target"
rm -f "$versions/verified"
# Relative, so that it holds inside containers too, which see the parent folder under another name.
ln -sfn ".$(basename "$model").fleetctl/$(basename "$target")" "$versions/link"
# What was here before fleetctl is somebody's, a link as well as a folder.
case $(readlink -f "$model") in
"$(readlink -f "$versions")"/*) ;;
*)
	if [ -L "$model" ]; then
		ln -s "$(readlink -f "$model")" "$versions/found.$(date +%s)"
	elif [ -d "$model" ]; then
		mv -T "$model" "$versions/found.$(date +%s)"
	fi
	;;
esac
mv -Tf "$versions/link" "$model"
cd "$model"
printf '%s %s\n' "$(sha256sum <"$manifest" | cut -d' ' -f1)" "$(stamp_here)" >"$kept.verified.new"
mv -f "$kept.verified.new" "$kept.verified"
echo "bytes $total $total complete"
