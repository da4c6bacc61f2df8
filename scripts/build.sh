#!/usr/bin/env bash
# The module for this machine: target/release/libredis_cell.so. With --tests also
# target/release/libredis_cell_faulty.so, the module with seeded faults for the live suite to catch.
source "$(dirname "$0")/lib.sh"
need_compiler
if [[ ${1:-} == --tests ]]; then
    cargo build --release --locked --features faults
    install target/release/libredis_cell.so target/release/libredis_cell_faulty.so
fi
cargo build --release --locked
