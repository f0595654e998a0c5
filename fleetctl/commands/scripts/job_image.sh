# job_image FOLDER IMAGE [LIMIT [RECORD]]: the image as the host `source` of FOLDER's ssh configuration has it, at most
# LIMIT bytes a second (0: no limit); RECORD gets a note of it, whether or not anybody still watches. Only the layers that Docker lacks here are fetched, each into a file on Docker's own disk,
# resuming at the byte; checked against its diff id; and loaded as a throw-away image of the layers so far. The image's
# own configuration comes last, alone, and its name after it ran. Where that does not apply: docker save and load.
# FOLDER, which has the transfer's key, ends with the job, however it ends. What a copy that failed has got (a layer's
# file below DockerRootDir/fleetctl-partial, images fleetctl-partial:*) serves the next one, and goes when one ends well.
folder=$1 image=$2 limit=${3:-0} record=${4:-}
PATIENCE=900 # seconds without a byte until the source counts as lost
SOURCE_CHANGED=65 SOURCE_LOST=69
ANOTHER_WAY=3 NO_LAYER=5 AWAY=75 # what the source's layers.py ends with; 255 is ssh's own
name=$(basename "$folder")
trial="fleetctl-trial-$name"
pids=
hush() {
	for pid in $pids; do kill "$pid" 2>/dev/null || true; done
	pids=
}
finish() {
	hush
	if [ -e "$folder/trial" ]; then docker rm -f "$trial" >/dev/null 2>&1 || true; fi
	timeout 15 ssh -F "$folder/config" -o ConnectTimeout=3 source forget </dev/null >/dev/null 2>&1 || true
	rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' TERM INT HUP
fail() { # CODE WORDS
	echo "$2" >&2
	exit "$1"
}
ask() { ssh -F "$folder/config" source "$@" </dev/null 2>"$folder/reason"; }
reason() { grep . "$folder/reason" | tail -n 1; }
bytes_of() { stat -c %s "$1" 2>/dev/null || echo 0; }
sha256_of() { if command -v openssl >/dev/null; then openssl dgst -sha256 -r; else sha256sum; fi <"$1" | cut -d' ' -f1; }
room() { # BYTES
	free=$(df -P -B 1 "$root" | awk 'NR == 2 { print $4 }')
	if [ "$free" -lt "$1" ]; then
		fail 1 "the disk of $root is full: $(($1 >> 20)) MiB are needed, $((free >> 20)) MiB are free"
	fi
}

# How long the source may be silent.
uptime_seconds() { cut -d. -f1 /proc/uptime; }
gained() { tries=0 refused=0 last=$(uptime_seconds); }
gained
wait_for_source() {
	tries=$((tries + 1)) why=$(reason)
	case $why in
	*"Permission denied"* | *"Host key verification failed"*) refused=$((refused + 1)) ;;
	*) refused=0 ;;
	esac
	if [ "$refused" -ge 8 ]; then fail 1 "the source does not let this key in: $why"; fi
	if [ $(($(uptime_seconds) - last)) -ge "$PATIENCE" ]; then
		fail "$SOURCE_LOST" "the source has sent nothing for $PATIENCE s: $why"
	fi
	echo "the source does not answer, trying again: $why"
	sleep $((tries < 10 ? 2 * tries : 20))
}
answer() { # answer OUTPUT VERB: not 0 when the source cannot serve layers
	while :; do
		code=0
		ask "$2" >"$1" || code=$?
		case $code in
		0)
			gained
			return 0
			;;
		255 | "$AWAY") wait_for_source ;;
		4) fail "$SOURCE_CHANGED" "the source has no $image: $(reason)" ;;
		*) return "$ANOTHER_WAY" ;;
		esac
	done
}

# Progress: `now` has what arrived before, the file that grows (or -), and words.
arrived=0 total=0
doing() { echo "$arrived $1 $2" >"$folder/now"; }
tell() {
	while sleep 1 && kill -0 $$; do
		if read -r before file words <"$folder/now"; then
			before=$((before + $(bytes_of "$work/$file")))
			if [ "$total" -eq 0 ]; then
				echo "$words, $((before >> 20)) MiB so far"
				continue
			fi
			if [ "$before" -gt "$total" ]; then before=$total; fi
			echo "bytes $before $total $words"
		fi
	done 2>/dev/null &
	pids=$!
}

# The most layers, from the bottom, that some image here shares with the source's.
shared_layers() {
	docker image ls -aq --no-trunc | sort -u |
		{ xargs -r docker image inspect -f '{{range .RootFS.Layers}}{{.}} {{end}}' 2>/dev/null || true; } |
		awk 'FILENAME == ARGV[1] { want[FNR] = $1; next }
			{ n = 0; while (n < NF && $(n + 1) == want[n + 1]) n++; if (n > best) best = n }
			END { print best + 0 }' "$folder/layers" -
}
content_of() { docker image inspect -f '{{range .RootFS.Layers}}{{.}} {{end}}' "$1" | tr ' ' '\n' | grep . || true; }
# fetch DIGEST BYTES: the layer's file, whole. Disk for the file and for Docker's copy of it while it is loaded.
fetch() {
	part="$work/${1#sha256:}"
	while :; do
		had=$(bytes_of "$part")
		if [ "$had" -gt "$2" ]; then
			rm -f "$part"
			had=0
		fi
		room $((2 * $2 - had))
		if [ "$had" -eq "$2" ]; then return 0; fi
		code=0
		ask layer "$1" "$had" "$limit" >>"$part" || code=$?
		if [ "$(bytes_of "$part")" -gt "$had" ]; then gained; fi
		case $code in
		0 | 255 | "$AWAY") if [ "$(bytes_of "$part")" -ne "$2" ]; then wait_for_source; fi ;;
		4 | "$NO_LAYER") return "$NO_LAYER" ;;
		*) return "$ANOTHER_WAY" ;;
		esac
	done
}
# load CONFIG NAME COUNT [FILE]: the image of the lowest COUNT layers, all here but the one in FILE, which is gone as
# soon as Docker has read it: Docker keeps a copy in its tmp until the layer is unpacked.
load() {
	awk -v config="$1" -v name="$2" -v count="$3" '
		NR <= count { list = list (NR > 1 ? "," : "") "\"" substr($1, 8) "\"" }
		END { printf "[{\"Config\":\"%s\",\"RepoTags\":[%s],\"Layers\":[%s]}]", config, name ? "\"" name "\"" : "", list }' \
		"$folder/layers" >"$folder/manifest.json"
	set -- "$1" "${4:-}"
	{
		# What Docker did not read to its end is there still when it is tried again.
		tar -cf - -C "$folder" manifest.json "$1" ${2:+-C "$work" "$2"} && if [ -n "$2" ]; then rm -f "${work:?}/$2"; fi
	} 2>"$folder/tar" | docker load -q >/dev/null 2>"$folder/reason" && return 0
	if grep -qi 'no space left' "$folder/reason"; then fail 1 "the disk of $root is full: $(reason)"; fi
	return 1
}
# add NUMBER DIGEST BYTES: one more layer. A second time when its bytes are wrong or Docker does not take it.
add() {
	for _ in 1 2; do
		doing "${2#sha256:}" "layer $1 of $count"
		fetch "$2" "$3" || return
		if [ "sha256:$(sha256_of "$part")" != "$2" ]; then
			rm -f "$part"
			echo "layer $1 did not arrive as the source has it" >"$folder/reason"
			continue
		fi
		awk -v count="$1" -v arch="$arch" '
			NR <= count { list = list (NR > 1 ? "," : "") "\"" $1 "\"" }
			END { printf "{\"architecture\":\"%s\",\"os\":\"linux\",\"config\":{},", arch
				printf "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[%s]}}", list }' "$folder/layers" >"$folder/cut.json"
		arrived=$((arrived + $3))
		doing - "loading layer $1 of $count"
		if load cut.json "fleetctl-partial:$name.$1" "$1" "$(basename "$part")"; then
			rm -f "$part"
			if [ "$1" -gt 1 ]; then docker rmi "fleetctl-partial:$name.$(($1 - 1))" >/dev/null 2>&1 || true; fi
			return 0
		fi
		arrived=$((arrived - $3))
		docker_answers
	done
	return "$ANOTHER_WAY"
}
docker_answers() { # it may be restarting
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
		if docker version >/dev/null 2>&1; then return 0; fi
		sleep 5
	done
	fail 1 "Docker does not answer: $(reason)"
}
by_layers() {
	answer "$folder/list" layers || return
	if [ "$driver" != overlay2 ]; then
		echo "Docker here keeps its images with $driver, not in the overlay2 store" >"$folder/reason"
		return "$ANOTHER_WAY"
	fi
	answer "$folder/config.json" config || return
	read -r _ id _ <"$folder/list"
	tail -n +2 "$folder/list" >"$folder/layers"
	if [ "sha256:$(sha256_of "$folder/config.json")" != "$id" ]; then return "$NO_LAYER"; fi
	if grep -qvE '^sha256:[0-9a-f]{64} [0-9]+$' "$folder/layers"; then
		echo "what it lists are no layers" >"$folder/reason"
		return "$ANOTHER_WAY"
	fi
	count=$(wc -l <"$folder/layers") have=$(shared_layers)
	total=$(awk -v have="$have" 'NR > have { sum += $2 } END { printf "%.0f", sum }' "$folder/layers")
	# Layers of what was to be copied some other time.
	for file in "$work"/*; do
		grep -q "^sha256:${file##*/} " "$folder/layers" || rm -f "$file"
	done
	echo "bytes 0 $total $((count - have)) of $count layers are missing"
	tell
	number=0
	while read -r digest bytes; do
		number=$((number + 1))
		if [ "$number" -gt "$have" ]; then add "$number" "$digest" "$bytes" || return; fi
	done <"$folder/layers"
	known=$(docker image inspect -f known "$id" 2>/dev/null || true)
	if ! load config.json '' "$count"; then
		docker_answers
		load config.json '' "$count" || return "$ANOTHER_WAY"
	fi
	cut -d' ' -f1 "$folder/layers" >"$folder/digests"
	if ! content_of "$id" | cmp -s - "$folder/digests"; then fail 1 "what Docker loaded is not the source's $image ($id)"; fi
	doing - "running it"
	if ! runs "$id"; then
		if [ -z "$known" ]; then docker rmi "$id" >/dev/null 2>&1 || true; fi
		fail 1 "the image was copied and does not run: $(reason)"
	fi
	docker tag "$id" "$image" || fail 1 "the image $id cannot be named $image"
}
# runs IMAGE: a container of it starts. One without a shell got as far as looking for it: mounted, with its namespaces.
runs() {
	docker rm -f "$trial" >/dev/null 2>&1 || true
	touch "$folder/trial"
	code=0
	timeout 120 docker run --rm --name "$trial" --network none --log-driver none --no-healthcheck \
		--entrypoint /bin/sh "$1" -c : >/dev/null 2>"$folder/reason" || code=$?
	if [ "$code" -eq 127 ] && grep -q 'stat /bin/sh: no such file' "$folder/reason"; then
		echo "the image has no /bin/sh: its container was made, and nothing ran in it"
		return 0
	fi
	return "$code"
}

# Standard input to standard output, at most so much a second, and how much it was.
paced() {
	block=$((limit > 0 ? limit : 1 << 23)) start=$(uptime_seconds) turn=0
	while :; do
		LC_ALL=C dd bs=64K count="$block" iflag=fullblock,count_bytes 2>"$folder/dd"
		copied=$(sed -n 's/^\([0-9]*\) bytes.*/\1/p' "$folder/dd")
		if [ "${copied:-0}" -eq 0 ]; then return 0; fi
		arrived=$((arrived + copied)) turn=$((turn + 1))
		doing - "the whole image"
		while [ "$limit" -gt 0 ] && [ $(($(uptime_seconds) - start)) -lt "$turn" ]; do sleep 0.2; done
	done
}
# whole WHY: every layer, in one stream that cannot resume.
whole() {
	echo "not by layers but whole, by docker save and load: $1" >&2
	total=$(awk '$1 == "image" { print $3 }' "$folder/list" 2>/dev/null || true) total=${total:-0}
	room $((2 * total))
	mkfifo "$folder/stream"
	# Docker moves the name as it loads; it goes back when what came is no good.
	old=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null || true)
	loaded=1 sent=1 cuts=0
	while [ "$sent-$loaded" != 0-0 ]; do
		arrived=0 loaded=0 sent=0
		doing - "the whole image"
		tell
		ask save >"$folder/stream" &
		sender=$! pids="$pids $!"
		paced <"$folder/stream" | docker load -q >/dev/null 2>"$folder/loaded" || loaded=$?
		wait "$sender" || sent=$?
		hush
		if grep -qi 'no space left' "$folder/loaded"; then fail 1 "the disk of $root is full: $(cat "$folder/loaded")"; fi
		if [ "$sent" -eq 255 ]; then
			read -r before _ <"$folder/now"
			if [ "$before" -gt 0 ]; then
				gained
				cuts=$((cuts + 1))
			fi
			if [ "$cuts" -ge 5 ]; then fail "$SOURCE_LOST" "docker save was cut off $cuts times: $(reason)"; fi
			wait_for_source
		elif [ "$sent-$loaded" != 0-0 ]; then
			fail 1 "docker save and load: $(cat "$folder/reason" "$folder/loaded" | grep . | tail -n 2 | tr '\n' ' ')"
		fi
	done
	sed -n 's/^\(sha256:[0-9a-f]*\) .*/\1/p' "$folder/list" >"$folder/digests" 2>/dev/null || true
	if [ -s "$folder/digests" ] && ! content_of "$image" | cmp -s - "$folder/digests"; then
		give_back
		fail 1 "what Docker loaded is not the source's $image"
	fi
	runs "$image" || {
		why=$(reason)
		give_back
		fail 1 "the image was copied and does not run: $why"
	}
}
give_back() {
	if [ -n "$old" ]; then docker tag "$old" "$image"; else docker rmi "$image" >/dev/null 2>&1 || true; fi
}

case $image in *@*) fail 1 "$image names a content, which a copy cannot be given: write a tag, and image.digest" ;; esac
docker info -f '{{.Driver}} {{.DockerRootDir}}' >"$folder/docker"
read -r driver root <"$folder/docker"
arch=$(docker version -f '{{.Server.Arch}}')
work="$root/fleetctl-partial/$name"
mkdir -p "$work"
round=0 code="$NO_LAYER"
while [ "$code" -eq "$NO_LAYER" ]; do
	round=$((round + 1)) code=0
	if [ "$round" -gt 3 ]; then fail "$SOURCE_CHANGED" "$image became another image on the source while it was copied"; fi
	by_layers || code=$?
	hush
done
if [ "$code" -ne 0 ]; then whole "$(reason)"; fi
if [ -n "$record" ]; then brought "$record" "$image"; fi
docker image ls --filter "reference=fleetctl-partial:$name.*" --format '{{.Repository}}:{{.Tag}}' |
	xargs -r docker rmi >/dev/null
rm -rf "$work"
rmdir "$root/fleetctl-partial" 2>/dev/null || true
echo "bytes $total $total complete"
