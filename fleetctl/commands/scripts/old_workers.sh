# old_workers UNIT: how many workers of an nginx are going, and still have requests.
pid=$(systemctl show -p MainPID --value "$1")
ps --no-headers -o args --ppid "$pid" | awk '/is shutting down/ { n++ } END { print n + 0 }'
