# balancer_test UNIT VERB LIST: what speaks against VERB (restart, start) with the files that are there; nothing when they
# are good. Of one that does not run nginx is not asked: there is nothing to lose, and the start says it.
unit=$1 verb=$2 list=$3
if systemctl is-active --quiet "$unit"; then
	[ "$verb" = restart ] || exit 0 # what serves is left alone
	# Asked as the unit itself asks.
	tested=$(systemctl show -p ExecStartPre --value "$unit" | sed -n 's/.* argv\[\]=\(.*\) ; ignore_errors=.*/\1/p')
	# shellcheck disable=SC2086 # words, none of which has a blank in it
	said=$($tested 2>&1) || {
		printf '%s\n' "$said"
		exit 0
	}
fi
# nginx -t compiles no Lua. An older fleetctl has left no LIST: then it cannot be told.
LC_ALL=C sha256sum -c "$list" 2>/dev/null |
	sed -n 's/^\(.*[.]lua\): FAILED.*/\1 is not as it was applied, which nginx -t does not see/p'
