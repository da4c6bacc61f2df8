#!/usr/bin/env bash
# Sends the same traffic through every limiter on a real server, and draws the answers: docs/plots/.
source "$(dirname "$0")/lib.sh"

server=$(find_server)
command -v redis-cli >/dev/null || apt_install redis-tools
scripts/build.sh
start_server

answers=target/plots.tsv
say "recording seven seconds of traffic"
cargo run --quiet --release --locked -p redis-cell-plots -- record "$port" "$answers"
cargo run --quiet --release --locked -p redis-cell-plots -- draw "$answers" docs/plots
one_line docs/plots/*.svg
