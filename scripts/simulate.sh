#!/usr/bin/env bash
# Simulates gateways before one limit, and puts the tables and the pictures into the pages.
source "$(dirname "$0")/lib.sh"
need_compiler
cargo run --quiet --release --locked -p redis-cell-simulator -- "${@:-.}"
