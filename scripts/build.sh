#!/usr/bin/env bash
# Builds the module for this machine: target/release/libredis_cell.so. With --plain, builds it to be tried or tested,
# in less time because its crates are not optimized together: target/suite/libredis_cell.so. With --tests, builds
# beside that one libredis_cell_faulty.so, the module with seeded faults that the live suite must detect.
source "$(dirname "$0")/lib.sh"
need_compiler
case ${1:-} in
--plain) cargo build --profile suite --locked --lib -p redis-cell ;;
--tests) cargo build --profile suite --locked --lib -p redis-cell -p redis-cell-faulty ;;
*) cargo build --release --locked --lib -p redis-cell ;;
esac
