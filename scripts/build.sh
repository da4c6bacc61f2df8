#!/usr/bin/env bash
# The module for this machine: target/release/libredis_cell.so. With --tests also
# target/release/libredis_cell_faulty.so, the module with seeded faults for the live suite to catch.
source "$(dirname "$0")/lib.sh"
need_compiler
packages=(-p redis-cell)
if [[ ${1:-} == --tests ]]; then packages+=(-p redis-cell-faulty); fi
cargo build --release --locked --lib "${packages[@]}"
