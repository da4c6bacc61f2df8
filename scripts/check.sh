#!/usr/bin/env bash
# The quick loop between edits: formatting, lints, the layers of src, the core, and CL.THROTTLE in a real server. It
# takes about a minute with a warm target/, and fetches nothing.
source "$(dirname "$0")/lib.sh"
need_compiler
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked --offline -- -D warnings
cargo test --quiet --locked --offline --test layers
cargo test --quiet --locked --offline -p redis-cell-core
cargo build --quiet --release --locked --offline
REDIS_CELL_SERVER=$(find_server) cargo test --quiet --release --locked --offline --test live -- throttle::
say "passed; make test runs everything"
