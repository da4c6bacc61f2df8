#!/usr/bin/env bash
# Measures the module against the server's own commands, and against the module named in PEER; then the core's
# decisions. Arguments choose lines of the table by a part of their name, or one of the other things there are: core
# the core's decisions alone curves    what grows with what is there already publish   puts what was measured last into
# docs/benchmarks.md
source "$(dirname "$0")/lib.sh"

need_compiler
REDIS_CELL_SERVER=$(find_server)
export REDIS_CELL_SERVER
if [[ ${1:-} != core ]]; then
    if [[ ${1:-} != publish ]]; then scripts/build.sh; fi
    cargo run --quiet --release --locked -p redis-cell-bench -- "$@"
fi
if [[ ${1:-core} == core ]]; then
    cargo bench --quiet --locked -p redis-cell-bench --bench decisions -- --noplot --quiet
fi
