#!/usr/bin/env bash
# The portable module: target/dist/libredis_cell.so, for every Linux of this architecture with glibc 2.17 (2012) or newer.
# With --tests also target/suite, what the live suite needs on such a machine: itself, the module, and the module with seeded
# faults for it to catch.
source "$(dirname "$0")/lib.sh"

glibc=2.17
target=$(uname -m)-unknown-linux-gnu

need_compiler
# Zig carries the symbol lists of every glibc and its own C headers; cargo-zigbuild makes it cargo's linker.
zigbuild=$(wheel cargo-zigbuild cargo-zigbuild)
CARGO_ZIGBUILD_ZIG_PATH=$(wheel ziglang zig)
export CARGO_ZIGBUILD_ZIG_PATH
export CARGO_ZIGBUILD_CACHE_DIR=$PWD/target/zig ZIG_GLOBAL_CACHE_DIR=$PWD/target/zig ZIG_LOCAL_CACHE_DIR=$PWD/target/zig

# From another folder, since zig names its headers relative to the folder it runs in when it lies below that, and bindgen,
# which runs elsewhere, would not find them.
build() {
    (cd scripts && "$zigbuild" zigbuild --manifest-path ../Cargo.toml --release --locked --target "$target.$glibc" "$@")
}

# publish FILE COPY: under a new inode, since a running server may have the old one mapped.
publish() {
    install -D "$1" "$2"
    local newest
    newest=$(objdump -T "$2" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -1)
    [[ $(printf '%s\n' "GLIBC_$glibc" "$newest" | sort -V | tail -1) == "GLIBC_$glibc" ]] ||
        die "$2 needs $newest: not portable"
    echo "$2 needs nothing newer than $newest" >&2
}

module=target/$target/release/libredis_cell.so
if [[ ${1:-} == --tests ]]; then
    live=$(build --test live --message-format=json-render-diagnostics | grep -oE '"executable":"[^"]+"' | cut -d '"' -f 4)
    publish "$live" target/suite/live
    build --lib --features faults
    publish "$module" target/suite/libredis_cell_faulty.so
fi
build --lib
publish "$module" target/dist/libredis_cell.so
if [[ ${1:-} == --tests ]]; then install target/dist/libredis_cell.so target/suite; fi
