#!/usr/bin/env bash
# Runs the long forms of docs/verification.md.
source "$(dirname "$0")/lib.sh"

need_compiler
say "random cases"
PROPTEST_CASES=200000 PROPTEST_MAX_GLOBAL_REJECTS=100000000 \
    cargo test --profile models --locked -p redis-cell-core --tests
say "models of the core"
cargo run --profile models --locked -p redis-cell-verify
say "histories of servers"
REDIS_CELL_LONG=1 REDIS_CELL_TESTS=histories:: scripts/test.sh reliability
say "mutants"
scripts/mutants.sh
