#!/usr/bin/env bash
# Builds the module for this machine: target/release/libredis_cell.so. With --tests, also builds
# target/release/libredis_cell_faulty.so, the module with seeded faults that the live suite must detect.
source "$(dirname "$0")/lib.sh"
need_compiler
packages=(-p redis-cell)
if [[ ${1:-} == --tests ]]; then packages+=(-p redis-cell-faulty); fi
cargo build --release --locked --lib "${packages[@]}"
