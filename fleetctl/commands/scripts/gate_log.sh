# gate_log UNIT LINES: the last words of an instance.
journalctl -u "$1" -n "$2" --no-pager -o cat 2>/dev/null || true
