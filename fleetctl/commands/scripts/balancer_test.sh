# balancer_test UNIT: what nginx says against the files that UNIT would start with, asked as the unit itself asks. Nothing
# when they are good, and when UNIT does not run: then there is nothing to lose, and the start says it.
systemctl is-active --quiet "$1" || exit 0
tested=$(systemctl show -p ExecStartPre --value "$1" | sed -n 's/.* argv\[\]=\(.*\) ; ignore_errors=.*/\1/p')
# shellcheck disable=SC2086 # words, none of which has a blank in it
said=$($tested 2>&1) || printf '%s\n' "$said"
