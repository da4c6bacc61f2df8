#!/usr/bin/env bash
# The quick loop between edits: formatting, lints, the layers of src, the core, and CL.THROTTLE in a real server. It
# takes about a minute with a warm target/. It fetches only crates that this machine does not have yet.
source "$(dirname "$0")/lib.sh"
need_compiler
formatting_and_lints
cargo test --quiet --locked -p redis-cell-core
cargo build --quiet --profile suite --locked --lib
REDIS_CELL_SERVER=$(find_server) REDIS_CELL_MODULE=$PWD/target/suite/libredis_cell.so \
    cargo test --quiet --locked -p redis-cell-tests --test live -- throttle::
say "passed; make test runs everything"
