#!/usr/bin/env bash
# Counts the instructions of every command, and writes them to bench/instructions.tsv. With --check, compares them with
# that file instead, as CI does.
source "$(dirname "$0")/lib.sh"

REDIS_CELL_SERVER=$(find_server)
export REDIS_CELL_SERVER
unset REDIS_CELL_MODULE # of tests: the release is counted
command -v valgrind >/dev/null || apt_install valgrind
scripts/build.sh
task=record
if [[ ${1:-} == --check ]]; then task=check; fi
cargo run --quiet --locked -p redis-cell-bench -- instructions "$task"
