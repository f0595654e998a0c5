# verify_ask MARK PARALLEL: standard input is a configuration for curl, which may hold the key. Prints what came back as
# files named MARK.N.head and MARK.N.body and curl's own report; MARK is random, so that no body can look like a file.
mark=$1 parallel=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# A body without an end stops at 4 MiB and not at the end of the disk.
trap '' XFSZ
ulimit -f 8192
if [ "$parallel" = 1 ]; then
	curl -q -s -K - >"$mark.http" || true
else
	curl -q -s -Z --parallel-max "$parallel" -K - >"$mark.http" || true
fi
# With two files or more every `head` prints their names.
: >"$mark.end"
head -c 262144 "$mark".*
