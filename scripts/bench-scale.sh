#!/usr/bin/env bash
# Measures tables of docs/scaling.md: the limits of a server, and the ways to fewer calls. Without an argument, all
# parts, in eight minutes. Otherwise the named part:
#   kinds      processor time and memory of each kind of limiter
#   rungs      direct calls, remembered refusals, merged calls and leases at a round trip of 0.5 ms, in Rust, with 1 to
#              64 callers, 1 and 10,000 keys, and 0 to 99 % refused; the same and more in Python; six minutes
#   middleware a call of a tool of FastMCP with and without the middleware; writes bench/middleware.tsv
#   publish    copies the last measurements to docs/scaling.md, bench/scaling.md and bench/rungs.tsv
source "$(dirname "$0")/lib.sh"

need_compiler
results=target/bench/scale
mkdir -p "$results"
bench() { cargo run --quiet --release --locked -p redis-cell-bench -- scale "$@"; }

part() {
    say "$1"
    case $1 in
    kinds) REDIS_CELL_SERVER=$server bench "$1" ;;
    rungs)
        cargo build --quiet --release --locked -p redis-cell-client --example rungs --features aio
        python=$(python_venv clients/python/requirements/newest.txt clients/python)
        start_server
        export REDIS_URL=redis://127.0.0.1:$port
        target/release/examples/rungs "$results/rungs.tsv"
        {
            printf '%s, %s.\n\n' "$(date --utc '+%Y-%m-%d %H:%M UTC')" "$(server_name "$("$server" --version)")"
            "$python/bin/python" bench/rungs.py "$results/rungs-python.tsv"
        } | tee "$results/rungs-python.part"
        mv "$results/rungs-python.part" "$results/rungs-python.md" # only a whole one is published
        ;;
    middleware)
        python=$(python_venv clients/python/requirements/newest.txt clients/python)
        start_server
        REDIS_URL=redis://127.0.0.1:$port "$python/bin/python" bench/middleware.py bench/middleware.tsv
        ;;
    *) die "no part of this name: $1" ;;
    esac
}

if [[ ${1:-} == publish ]]; then
    bench publish
    if [[ -f $results/rungs.tsv ]]; then
        cp "$results"/rungs{,-python}.tsv bench/
        cargo run --quiet --release --locked -p redis-cell-plots -- rungs bench/rungs.tsv docs/plots
        one_line docs/plots/*.svg
    fi
    exit
fi
server=$(find_server)
scripts/build.sh
if (($# > 0)); then
    part "$@"
else
    for name in kinds rungs; do part "$name"; done
fi
