# audit_read PATH: the log, oldest line first.
for file in "$1.1" "$1"; do
	if [ -e "$file" ]; then cat "$file"; fi
done
