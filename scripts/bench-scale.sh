#!/usr/bin/env bash
# Decisions of one process with leases of units, beside direct calls, on a server of this machine.
source "$(dirname "$0")/lib.sh"
need_compiler
server=$(find_server)
scripts/build.sh
cargo build --quiet --release --locked -p redis-cell-client --example leased --features aio
start_server
REDIS_URL=redis://127.0.0.1:$port target/release/examples/leased
