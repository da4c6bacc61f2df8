#!/usr/bin/env bash
# The portable module: target/dist/libredis_cell.so, for every Linux of this architecture with glibc 2.17 (2012) or newer, and
# beside it its debug information, for who reads a stack or a profile.
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

# What is shipped names no path of the machine that built it.
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo --remap-path-prefix=$PWD=redis-cell"

# From another folder, since zig names its headers relative to the folder it runs in when it lies below that, and bindgen,
# which runs elsewhere, would not find them.
build() {
    (cd scripts && "$zigbuild" zigbuild --manifest-path ../Cargo.toml --release --locked --target "$target.$glibc" "$@")
}

# publish FILE COPY: under a new inode, since a running server may have the old one mapped.
publish() {
    install -D "$1" "$2"
    local newest
    newest=$(newest_glibc "$2")
    [[ $(printf '%s\n' "$glibc" "$newest" | sort -V | tail -1) == "$glibc" ]] ||
        die "$2 needs glibc $newest: not portable"
    echo "$2 needs nothing newer than glibc $newest" >&2
}

module=target/$target/release/libredis_cell.so
if [[ ${1:-} == --tests ]]; then
    live=$(build --test live --message-format=json-render-diagnostics | grep -oE '"executable":"[^"]+"' | cut -d '"' -f 4)
    publish "$live" target/suite/live
    build --lib --features faults
    publish "$module" target/suite/libredis_cell_faulty.so
fi
build --lib
mkdir -p target/dist
objcopy --only-keep-debug "$module" target/dist/libredis_cell.so.debug
(cd target/dist && objcopy --strip-unneeded --add-gnu-debuglink=libredis_cell.so.debug "../../$module" stripped.so)
publish target/dist/stripped.so target/dist/libredis_cell.so
rm target/dist/stripped.so
if [[ ${1:-} == --tests ]]; then install target/dist/libredis_cell.so target/suite; fi
