#!/usr/bin/env bash
# Runs the long forms of docs/verification.md.
source "$(dirname "$0")/lib.sh"

need_compiler
say "random cases"
PROPTEST_CASES=200000 PROPTEST_MAX_GLOBAL_REJECTS=100000000 \
    cargo test --profile models --locked -p redis-cell-core --tests
say "models of the core"
cargo run --profile models --locked -p redis-cell-verify
say "specification of a failover"
scripts/tla.sh "c1, c2, c3" 2
say "histories of servers"
server=$(find_server)
scripts/build.sh --tests
REDIS_CELL_LONG=1 REDIS_CELL_SERVER=$server REDIS_CELL_MODULE=$PWD/target/release/libredis_cell.so \
    REDIS_CELL_FAULTY_MODULE=$PWD/target/release/libredis_cell_faulty.so \
    cargo test --release --locked --test reliability -- --nocapture histories::
say "mutants"
scripts/mutants.sh
