#!/bin/sh
# watchdog.sh FLEET HANG LOADING PER_HOUR DRAFTS MODEL ID=NAME=ADDRESS...: one look at the instances of FLEET on this
# machine (docs/decisions/watchdog.md). Written by fleetctl, run by a timer; what it saw before is in /run, so a reboot
# forgets it, and every age is measured by /proc/uptime, so a clock that is wrong changes nothing.
#
# An engine hangs while /health says 200 (vllm#36451, vllm#46811): it has work and makes no step for HANG seconds. It is
# killed, systemd starts it again; after PER_HOUR times in an hour it is parked, with a mark that `fleetctl status` shows.
# Its work is what its gauges say, or a question of one token that it leaves unanswered (the gauges of an engine that
# hangs may read 0). One that drafted DRAFTS times in a row for nothing still serves: it is restarted when it is idle.
set -eu
umask 022
fleet=$1 hang=$2 loading=$3 per_hour=$4 many=$5 model=$6
shift 6
root=${WATCHDOG_ROOT:-} # tests have a machine of plain files there
kept=$root/var/lib/fleetctl/$fleet
memory=$root/run/fleetctl/watchdog/$fleet
mkdir -p "$memory"
look=$(mktemp -d "$memory/look.XXXXXX")
trap 'rm -rf "$look"' EXIT
read -r now _ <"$root/proc/uptime"
now=${now%.*}

# Everything there is to see, at once: one systemctl, one curl.
units() {
	for one; do
		name=${one#*=}
		printf '%s.service\n' "${name%%=*}"
	done
}
requests() {
	for one; do
		name=${one#*=}
		printf 'url = "http://%s/metrics"\noutput = "%s/%s.metrics"\n' "${one##*=}" "$look" "${name%%=*}"
		printf 'silent\nconnect-timeout = 3\nmax-time = 8\nwrite-out = "%s %%{http_code}\\n"\nnext\n' "${name%%=*}"
	done
}
# shellcheck disable=SC2046 # names of units have no spaces
systemctl show -p Id,ActiveState,InvocationID $(units "$@") | awk -F= -v folder="$look" '
	function keep() { if (id != "") print state, (run == "" ? "-" : run) >(folder "/" id ".unit"); id = state = run = "" }
	$1 == "Id" { id = $2; sub(/[.]service$/, "", id) }
	$1 == "ActiveState" { state = $2 }
	$1 == "InvocationID" { run = $2 }
	NF == 0 { keep() }
	END { keep() }'
requests "$@" | sed '$d' | curl -q -Z -K - >"$look/http" 2>/dev/null || true

# Of /metrics: requests it has, steps it made (any change is progress), drafts and accepted tokens, summed over engines.
measure() {
	awk '
		/^vllm:num_requests_(running|waiting)[{ ]/ { work += $NF }
		/^vllm:iteration_tokens_total_(count|sum)[{ ]/ { steps = steps "/" $NF }
		/^vllm:spec_decode_num_drafts_total[{ ]/ { drafts += $NF }
		/^vllm:spec_decode_num_accepted_tokens_total[{ ]/ { accepted += $NF }
		END { printf "%.0f %s %.0f %.0f\n", work, (steps == "" ? "-" : steps), drafts, accepted }' "$1"
}

# Does it leave a question of one token unanswered? Any answer is one. The key reaches curl on its standard input.
silent() { # ADDRESS
	key=$(cat "$root/etc/fleetctl/$fleet/api-key" 2>/dev/null) || return 1
	ask='{\"model\":\"'$model'\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"1\"}]}'
	code=$({
		printf 'url = "http://%s/v1/chat/completions"\nsilent\noutput = "/dev/null"\n' "$1"
		printf 'max-time = %s\n' "$((hang < 10 ? hang : 10))"
		printf 'header = "Authorization: Bearer %s"\nheader = "Content-Type: application/json"\n' "$key"
		printf 'data = "%s"\nwrite-out = "%%{http_code}"\n' "$ask"
	} | curl -q -K - 2>/dev/null) || true
	[ "${code:-000}" = 000 ]
}

mark() { # KIND NAME REASON: what `fleetctl status` shows
	mkdir -p "$kept/$1"
	printf '{"who":"watchdog","when":"%s","reason":"%s"}\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$3" >"$kept/$1/.$2.new"
	mv -f "$kept/$1/.$2.new" "$kept/$1/$2"
}

audit() { # REST-OF-THE-LINE
	# After half a line, which a full disk left, a new one begins.
	if [ -n "$(tail -c 1 "$kept/audit.log" 2>/dev/null)" ]; then echo >>"$kept/audit.log"; fi
	printf '{"schema":1,"run":"w%s-%s",%s,"when":"%s"}\n' "$now" "${look##*.}" "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
		>>"$kept/audit.log"
}

# Not while a step of fleetctl is at work here, nor on what was stopped or started meanwhile.
act() ( # ID NAME RUN HOW WHY
	id=$1 name=$2 run=$3 how=$4 why=$5
	exec 9>>"$root/run/fleetctl/$fleet.lock"
	if ! flock -n 9; then
		echo "$id: $why; fleetctl is at work on this machine, so nothing is done now"
		exit 0
	fi
	if [ -e "$kept/stopped/$name" ]; then exit 0; fi
	if [ "$(systemctl show -p InvocationID --value "$name.service")" != "$run" ]; then exit 0; fi
	restarts=0
	: >"$look/restarts"
	if [ -e "$memory/$name.restarts" ]; then
		while read -r at; do
			if [ $((now - at)) -lt 3600 ]; then
				restarts=$((restarts + 1))
				echo "$at" >>"$look/restarts"
			fi
		done <"$memory/$name.restarts"
	fi
	verb=restart
	if [ "$restarts" -ge "$per_hour" ]; then verb=park; fi
	echo "$id: $why: $verb (restarts in the last hour: $restarts)"
	audit "\"event\":\"begin\",\"who\":\"watchdog\",\"command\":\"watchdog $verb $id ($why)\",\"operations\":1" || true
	# An engine that hangs does not listen to SIGTERM; what it has in flight is lost already.
	if [ "$how" = hung ]; then timeout 30 docker kill "$name" >/dev/null || true; fi
	if [ "$verb" = park ]; then
		mark parked "$name" "$why, after $restarts restarts within an hour" || true
		rm -f "$memory/$name.restarts" "$memory/$name.back"
		systemctl stop "$name.service"
	else
		echo "$now" >>"$look/restarts"
		mv -f "$look/restarts" "$memory/$name.restarts"
		echo "$now $run" >"$memory/$name.back"
		# After a kill systemd brings it back by itself, RestartSec later, when its memory is free.
		if [ "$how" != hung ] || [ "$(timeout 10 docker inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true ]; then
			systemctl restart --no-block "$name.service"
		fi
	fi
	audit '"event":"end","outcome":"done","done":1' || true
)

# Is it the one that was restarted, and has not answered since? (One that outlived its kill is not on its way back.)
returns() { # NAME RUN ANSWERS
	if [ ! -e "$memory/$1.back" ]; then return 1; fi
	read -r at killed <"$memory/$1.back" || at=0 killed=-
	if [ $((now - at)) -ge "$loading" ] || { [ "$2" != "$killed" ] && [ -n "$3" ]; }; then
		rm -f "$memory/$1.back"
		return 1
	fi
	[ "$2" != "$killed" ] || [ "$state" != active ]
}

found='' # the first that has to be acted on: never two at a time
back=''  # one that was restarted and has not answered yet
for one; do
	id=${one%%=*} address=${one##*=} name=${one#*=}
	name=${name%%=*}
	state=unknown run=-
	if [ -e "$look/$name.unit" ]; then read -r state run <"$look/$name.unit"; fi
	case $state in
	active) ;;
	inactive | failed)
		rm -f "$memory/$name" "$memory/$name.back"
		continue
		;;
	*)
		if returns "$name" "$run" ''; then back=$id; fi
		continue
		;;
	esac
	rm -f "$kept/parked/$name" # somebody started it
	if [ -e "$kept/stopped/$name" ]; then continue; fi

	seen='' born=$now steps=- moved=$now since=0 drafts=0 accepted=0
	if [ -e "$memory/$name" ]; then read -r seen born steps moved since drafts accepted <"$memory/$name" || seen=''; fi
	if [ "$seen" != "$run" ]; then
		born=$now steps=- moved=$now since=0 drafts=0 accepted=0
		rm -f "$kept/doubtful/$name"
	fi

	answers=''
	if grep -qx "$name 200" "$look/http" && [ -e "$look/$name.metrics" ]; then answers=yes; fi
	if returns "$name" "$run" "$answers"; then back=$id; fi
	work=0 new=- new_drafts=0 new_accepted=0 waits='' dead=''
	if [ -n "$answers" ]; then
		measure "$look/$name.metrics" >"$look/$name.now"
		read -r work new new_drafts new_accepted <"$look/$name.now"
		if [ "$new" = - ]; then
			since=0 # it shows no counters (--disable-log-stats): nothing to judge by
		elif [ "$new" != "$steps" ]; then
			steps=$new moved=$now since=0
		elif [ "$work" -gt 0 ]; then
			waits='no progress with requests in flight'
		elif [ "$since" -gt 0 ] || [ $((now - moved)) -ge "$hang" ]; then
			if silent "$address"; then waits='a question of one token has no answer'; else moved=$now; fi
		fi
		if [ "$new_accepted" != "$accepted" ] || [ "$new_drafts" -lt "$drafts" ]; then
			drafts=$new_drafts accepted=$new_accepted
			rm -f "$kept/doubtful/$name"
		elif [ $((new_drafts - drafts)) -ge "$many" ]; then
			dead="none of its last $((new_drafts - drafts)) drafts was accepted (MTP)"
		fi
	elif [ "$steps" != - ] || [ $((now - born)) -ge "$loading" ]; then
		waits='its server does not answer'
	fi # else it is loading

	if [ -z "$waits" ]; then
		since=0
	elif [ "$since" -eq 0 ]; then
		since=$now
	fi
	echo "$run $born $steps $moved $since $drafts $accepted" >"$memory/$name"
	if [ -n "$waits" ] && [ $((now - since)) -ge "$hang" ]; then
		if [ -z "$found" ]; then
			found=hung found_id=$id found_name=$name found_run=$run found_why="$waits for $((now - since)) s"
		fi
	elif [ -n "$dead" ] && [ "$work" -gt 0 ]; then
		mark doubtful "$name" "$dead" || true
	elif [ -n "$dead" ] && [ -z "$found" ]; then
		found=idle found_id=$id found_name=$name found_run=$run found_why=$dead
	fi
done

if [ -n "$found" ] && [ -n "$back" ]; then
	echo "$found_id: $found_why; it waits until $back is back"
elif [ -n "$found" ]; then
	act "$found_id" "$found_name" "$found_run" "$found" "$found_why"
fi
