# audit FILE LINE: one line of what was changed, when and by whom.
mkdir -p "$(dirname "$1")"
printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$2" >>"$1"
