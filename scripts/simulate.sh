#!/usr/bin/env bash
# Simulates gateways that share one limit, and writes the tables and pictures into the pages.
source "$(dirname "$0")/lib.sh"
need_compiler
cargo run --quiet --release --locked -p redis-cell-simulator -- "${@:-.}"
