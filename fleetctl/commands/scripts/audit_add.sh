# audit_add PATH: standard input, lines, is added to the log at PATH; a log over 1 MiB becomes PATH.1 first.
path=$1
mkdir -p "${path%/*}"
if [ -e "$path" ] && [ "$(stat -c %s "$path")" -gt 1048576 ]; then mv -f "$path" "$path.1"; fi
# After half a line, which a full disk left, a new one begins.
if [ -n "$(tail -c 1 "$path" 2>/dev/null)" ]; then echo >>"$path"; fi
cat >>"$path"
