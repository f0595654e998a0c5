# model_files: functions of the scripts that handle a model's files. A file is a line `SHA256 SIZE PATH`, its path
# escaped (\\ and \n), so that every name is one line; links are read as the files they point at.
PLAIN='function plain(s,  out, i) {
	while ((i = index(s, "\\")) > 0) {
		out = out substr(s, 1, i - 1) (substr(s, i + 1, 1) == "n" ? "\n" : "\\"); s = substr(s, i + 2) }
	return out s }'
# Digest of standard input: openssl is three times as fast as coreutils (facts/feasibility 3).
FLEETCTL_SHA256=sha256sum
if command -v openssl >/dev/null; then FLEETCTL_SHA256='openssl dgst -sha256 -r'; fi
export FLEETCTL_SHA256
# Paths with NUL after each, as they are on disk.
unescaped() { awk "$PLAIN"' { printf "%s%c", plain($0), 0 }'; }
# Every file of the current folder as `SIZE MTIME PATH`.
files_here() {
	find -L . -type f -printf '%s %T@ %P\0' | sed -z 's/\\/\\\\/g; s/\n/\\n/g' | tr '\0' '\n' | LC_ALL=C sort
}
# Names, sizes and times in one word: as long as it stays, nobody touched the files.
stamp_here() { files_here | sha256sum | cut -d' ' -f1; }
# hashed PARALLEL: lines `SIZE MTIME PATH` come back as `SHA256 SIZE MTIME PATH`, each as soon as it is known and its
# file is safe on disk; a file that cannot be read does not come back.
# shellcheck disable=SC2016 # for the inner shell
hashed() {
	awk "$PLAIN"' { path = $0; sub(/^[^ ]+ [^ ]+ /, "", path); printf "%s%c%s%c", $0, 0, plain(path), 0 }' |
		xargs -0 -r -n 2 -P "$1" sh -c 'sum=$($FLEETCTL_SHA256 <"./$2") && { sync -d "./$2" 2>/dev/null || true; } &&
			printf "%s %s\n" "${sum%% *}" "$1" || true' hashed
}
