#!/usr/bin/env bash
# Builds the module for this machine: target/release/libredis_cell.so. With --tests, builds it for tests instead, in
# seconds because its crates are not optimized together: target/suite/libredis_cell.so, and beside it
# libredis_cell_faulty.so, the module with seeded faults that the live suite must detect.
source "$(dirname "$0")/lib.sh"
need_compiler
if [[ ${1:-} == --tests ]]; then
    cargo build --profile suite --locked --lib -p redis-cell -p redis-cell-faulty
else
    cargo build --release --locked --lib -p redis-cell
fi
