#!/usr/bin/env bash
# The long forms of docs/verification.md.
source "$(dirname "$0")/lib.sh"

need_compiler
say "models of the core"
cargo run --profile models --locked -p redis-cell-verify
say "specification of a failover"
scripts/tla.sh "c1, c2, c3" 2
