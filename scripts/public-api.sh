#!/usr/bin/env bash
# Compares the public items of the Rust client with clients/rust/public.txt; with --write, writes them there. What goes
# or is renamed belongs in the changelog. The JSON of rustdoc is unstable: another compiler has another one.
source "$(dirname "$0")/lib.sh"
rustdoc=$(program "$PWD/target/rustdoc-json" "env RUSTC_BOOTSTRAP=1 rustdoc")
RUSTDOC=$rustdoc cargo rustdoc --quiet --locked -p redis-cell-client --all-features -- \
    -Zunstable-options --output-format json
items=$(python3 scripts/public-api.py target/doc/redis_cell_client.json)
if [[ ${1:-} == --write ]]; then
    echo "$items" >clients/rust/public.txt
else
    diff clients/rust/public.txt <(echo "$items") || die "other public items: scripts/public-api.sh --write writes them"
fi
