#!/usr/bin/env bash
# Builds the portable modules, target/dist/linux-PLATFORM/libredis_cell.so, for each PLATFORM in the arguments, or for
# this machine, each with its debug symbols, for backtraces and profiles. The platforms:
#   x86_64, aarch64             every Linux with glibc 2.17 (2012) or newer
#   x86_64-musl, aarch64-musl   Alpine and others with musl; they need only its libc
# The module for this machine is also copied to target/dist. With --tests, also builds target/suite, the live suite for
# this machine's processor, and in linux-PLATFORM, for this processor, the module with seeded faults that the suite must
# detect.
source "$(dirname "$0")/lib.sh"

tests=
if [[ ${1:-} == --tests ]]; then
    tests=yes
    shift
fi
own=$(uname -m)
glibc=2.17

need_compiler
command -v curl >/dev/null || apt_install curl
# Zig contains musl, the symbol lists of every glibc and its own C headers. cargo-zigbuild makes it cargo's linker.
zigbuild=$(wheel cargo-zigbuild cargo-zigbuild)
CARGO_ZIGBUILD_ZIG_PATH=$(wheel ziglang zig)
export CARGO_ZIGBUILD_ZIG_PATH
export CARGO_ZIGBUILD_CACHE_DIR=$PWD/target/zig ZIG_GLOBAL_CACHE_DIR=$PWD/target/zig ZIG_LOCAL_CACHE_DIR=$PWD/target/zig

# Does not use rustup's proxy for cargo, which would make every compiler use the libraries and targets of its own
# toolchain.
PATH=$(rustc --print sysroot)/bin:$PATH

# Release files must not contain paths of the machine that built them.
flags="${RUSTFLAGS:-} --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo --remap-path-prefix=$PWD=redis-cell"

# In its own folder, because cargo allows only one build at a time in a folder, and scripts/ahead.sh builds here while
# tests build in the other one.
export CARGO_TARGET_DIR=$PWD/target/portable

# build PLATFORM ARGUMENT...: runs `cargo build` for the platform in another folder, because zig names headers below the
# working directory relative to it, and bindgen, which runs elsewhere, would not find them.
build() {
    local target suffix=.$glibc
    target=$(target_of "$1")
    RUSTFLAGS=$flags
    if [[ $1 == *-musl ]]; then
        suffix=
        RUSTFLAGS+=" -Ctarget-feature=-crt-static" # a shared library cannot contain its own libc
    fi
    RUSTC=$(rust "$target")/bin/rustc
    export RUSTC RUSTFLAGS
    (cd scripts && "$zigbuild" zigbuild --manifest-path ../Cargo.toml --locked --target "$target$suffix" "${@:2}")
}

# target_of PLATFORM: prints the compiler's name for the platform.
target_of() {
    case $1 in
    *-musl) echo "${1%-musl}-unknown-linux-musl" ;;
    *) echo "$1-unknown-linux-gnu" ;;
    esac
}

# objcopy PLATFORM ARGUMENT...: runs the compiler's objcopy, which reads files for any processor.
objcopy() {
    local rust
    rust=$(rust "$(target_of "$1")")
    LD_LIBRARY_PATH=$rust/lib "$rust/lib/rustlib/$own-unknown-linux-gnu/bin/rust-objcopy" "${@:2}"
}

# publish PLATFORM FILE COPY: copies a release file under a new inode, because a running server may have mapped the old
# one.
publish() {
    local libraries newest
    libraries=$(readelf --dynamic "$2" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | LC_ALL=C sort | xargs)
    if [[ $1 == *-musl ]]; then
        [[ $libraries == libc.so ]] || die "$2 needs more than musl's libc: $libraries"
    else
        newest=$(newest_glibc "$2")
        [[ $(printf '%s\n' "$glibc" "$newest" | sort -V | tail -1) == "$glibc" ]] ||
            die "$2 needs glibc $newest: not portable"
        libraries+=", nothing newer than glibc $newest"
    fi
    install -D "$2" "$3"
    echo "$3 needs $libraries" >&2
}

for platform in "${@:-$own}"; do
    say "linux-$platform"
    built=target/portable/$(target_of "$platform")/release
    dist=target/dist/linux-$platform
    suite=target/suite/linux-$platform
    if [[ $tests && $platform == "$own" ]]; then
        # Not optimized: its tests mostly wait for their servers.
        live=$(build "$platform" -p redis-cell-tests --test live --message-format=json-render-diagnostics |
            grep -oE '"executable":"[^"]+"' | cut -d '"' -f 4)
        publish "$platform" "$live" target/suite/live
    fi
    packages=(-p redis-cell)
    faulty=
    if [[ $tests && ${platform%-musl} == "$own" ]]; then faulty=yes packages+=(-p redis-cell-faulty); fi
    build "$platform" --release --lib "${packages[@]}"
    if [[ $faulty ]]; then publish "$platform" "$built/libredis_cell_faulty.so" "$suite/libredis_cell_faulty.so"; fi
    mkdir -p "$dist"
    objcopy "$platform" --only-keep-debug "$built/libredis_cell.so" "$dist/libredis_cell.so.debug"
    objcopy "$platform" --strip-unneeded --add-gnu-debuglink="$dist/libredis_cell.so.debug" "$built/libredis_cell.so" \
        "$dist/stripped.so"
    publish "$platform" "$dist/stripped.so" "$dist/libredis_cell.so"
    rm "$dist/stripped.so"
    if [[ $tests ]]; then install -D "$dist/libredis_cell.so" "$suite/libredis_cell.so"; fi
    if [[ $platform == "$own" ]]; then install "$dist"/libredis_cell.so* target/dist; fi
done
