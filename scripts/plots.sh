#!/usr/bin/env bash
# Puts the same traffic through every limiter on a real server, and draws what it answered: docs/plots/.
source "$(dirname "$0")/lib.sh"

server=$(find_server)
command -v redis-cli >/dev/null || apt_install redis-tools
scripts/build.sh
start_server

say "recording seven seconds of traffic"
cargo run --quiet --release --locked -p redis-cell-plots -- record "$port" docs/plots
cargo run --quiet --release --locked -p redis-cell-plots -- draw docs/plots
