#!/usr/bin/env bash
# CL.THROTTLE with redis-cli (7.0 or newer, for -e). Arguments: URL of the server, URL of a server that is down.
set -euo pipefail

url=${1:-redis://127.0.0.1:6379}
url_down=${2:-redis://127.0.0.1:1} # nothing listens there
key=example:shell
rate=(2 30 60) # max_burst count period: 3 at once, then one every 2 seconds

# throttle URL KEY: sets the five numbers, or fails and sets the error, `answer`. timeout: redis-cli itself would wait
# for a reply forever. -e: an error reply is a failure as well.
throttle() {
    answer=$(timeout 1 redis-cli -e --no-auth-warning -u "$1" CL.THROTTLE "$2" "${rate[@]}" 2>&1) || {
        answer=${answer:-no answer}
        return 1
    }
    { read -r limited && read -r limit && read -r remaining && read -r retry_after && read -r reset_after; } <<<"$answer"
}

# The error replies of a server that does not decide now.
cannot_decide='^(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN|ERR max number of clients) '

# unavailable TEXT: whether no server decides now. All other errors are errors of the call or of the setup: they must be
# seen. An error reply begins with its code, in capital letters.
unavailable() {
    [[ $1 =~ $cannot_decide ]] || [[ ! $1 =~ ^[A-Z]+\ |certificate ]]
}

# handle URL KEY OPEN|CLOSED: handles an HTTP request; sets the status of its response.
handle() {
    if throttle "$1" "$2"; then
        if ((limited)); then status=429; else status=200; fi
    elif ! unavailable "$answer"; then
        echo "$2: $answer" >&2
        status=500
    else
        echo "no decision on $2: $answer" >&2
        if [[ $3 == OPEN ]]; then status=200; else status=503; fi
    fi
}

redis-cli -e -u "$url" DEL "$key" >/dev/null
for _ in {1..4}; do
    throttle "$url" "$key" || { echo "$key: $answer" >&2 && exit 1; }
    if ((limited)); then outcome=refused; else outcome=admitted; fi
    echo "$outcome: limit $limit, remaining $remaining, retry after $retry_after, reset after $reset_after"
done
handle "$url" "$key" CLOSED
echo "a request now: $status, Retry-After: $retry_after"
sleep "$retry_after"
handle "$url" "$key" CLOSED
echo "a request after the wait: $status"

redis-cli -e -u "$url" SET "$key" 'of another type' >/dev/null
handle "$url" "$key" OPEN
echo "an error of the call, fail open: $status"
redis-cli -e -u "$url" DEL "$key" >/dev/null

handle "$url_down" "$key" OPEN
echo "server down, fail open: $status"
handle "$url_down" "$key" CLOSED
echo "server down, fail closed: $status"
