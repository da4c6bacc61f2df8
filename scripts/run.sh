#!/usr/bin/env bash
# Starts a server with the module on a free port of this machine, shows a short session, and opens a prompt for the
# user. Without a terminal, it ends after the session. Nothing keeps running afterwards.
source "$(dirname "$0")/lib.sh"

server=$(find_server)
command -v redis-cli >/dev/null || apt_install redis-tools
scripts/build.sh --plain
REDIS_CELL_MODULE=$PWD/target/suite/libredis_cell.so

start_server

# throttle ARGUMENT...: shows a call as a user would type it, with a name for each of the five numbers in its reply.
reply=()
throttle() {
    mapfile -t reply < <(redis-cli -s "$dir/socket" CL.THROTTLE "$@")
    ((${#reply[@]} == 5)) || die "CL.THROTTLE $* answered: ${reply[*]}"
    printf '> CL.THROTTLE %s\n' "$*"
    printf '    limited %s, limit %s, remaining %s, retry_after %s, reset_after %s\n' "${reply[@]}"
    if ((reply[0] == 0)); then echo '    admitted'; else echo "    refused: the same call will be admitted in ${reply[3]} s"; fi
}

limit=(visitor:42 2 30 60)
cat <<END

$("$server" --version | { read -r line; server_name "$line"; }) with the module, on port $port.

Three at once (a burst of 2 on top of one), then 30 per 60 seconds, that is one every 2 seconds:

END
throttle "${limit[@]}"
throttle "${limit[@]}"
throttle "${limit[@]}"
throttle "${limit[@]}"
printf '\nWaiting for retry_after, %s s ...\n\n' "${reply[3]}"
sleep "${reply[3]}"
throttle "${limit[@]}"

if [[ -t 0 && -t 1 ]]; then
    printf '\nYour turn; the server ends with this prompt (type exit).\n'
    setpriv --pdeathsig TERM redis-cli -p "$port"
fi
