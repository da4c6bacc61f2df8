#!/usr/bin/env bash
# scripts/platform-server.sh PLATFORM [redis|valkey [SUITES]]: prints the path of a program that runs a server for
# another platform, or of another Debian release, on this machine. The platforms:
#   x86_64, aarch64             Debian's redis-server 7.0 or valkey-server 8.1, or those of SUITES, for
#                               scripts/debian.sh
#   x86_64-musl, aarch64-musl   Redis 7.0 from Debian's source package, built once with the compiler that links
#                               releases, and started by the loader of Debian's musl. It uses the allocator of
#                               libc, like Alpine's package. Its redis-cli.musl is in the same folder.
# qemu-user runs programs for other processors. Everything is unpacked below target/; nothing is installed.
source "$(dirname "$0")/lib.sh"

platform=$1 family=${2:-redis} suites=${3:-}
architecture=${platform%-musl}
debian=$(case $architecture in x86_64) echo amd64 ;; aarch64) echo arm64 ;; *) die "no platform is called $platform" ;; esac)

# emulator ROOT: prints the command that runs programs for the architecture, with the libraries in ROOT. For this
# processor, the command is ROOT's loader, because ROOT's glibc may be newer than this machine's.
emulator() {
    if [[ $architecture == "$(uname -m)" ]]; then
        local loader
        loader=$(find "$1" -type f -name 'ld-linux-*.so.*' -print -quit)
        echo "$loader --library-path ${loader%/*}"
        return
    fi
    scripts/debian.sh bookworm "$(dpkg --print-architecture)" target/roots/qemu qemu-user-static/
    echo "$PWD/target/roots/qemu/usr/bin/qemu-$architecture-static -L $1"
}

if [[ $platform != *-musl ]]; then
    : "${suites:=$(case $family in redis) echo bookworm ;; valkey) echo trixie ;; esac)}"
    root=$PWD/target/roots/$suites-$debian
    scripts/debian.sh "$suites" "$debian" "$root" "$family-server"
    program "$PWD/target/servers/$suites-$architecture/$family-server" "$(emulator "$root") $root/usr/bin/$family-server"
    exit
fi

folder=$PWD/target/servers/$platform
if [[ ! -x $folder/redis-cli.musl ]]; then
    need_compiler
    command -v make >/dev/null || apt_install make
    zig=$(wheel ziglang zig)
    export ZIG_GLOBAL_CACHE_DIR=$PWD/target/zig ZIG_LOCAL_CACHE_DIR=$PWD/target/zig
    scripts/debian.sh bookworm "$debian" "$folder.loader" musl/
    scripts/debian.sh bookworm "$debian" "$folder.source" redis.dsc
    say "building redis-server for $platform"
    make --directory "$(compgen -G "$folder.source/redis-*/src")" --jobs "$(nproc)" --silent redis-server redis-cli MALLOC=libc \
        CC="$zig cc -target $architecture-linux-musl -dynamic" AR="$zig ar" RANLIB="$zig ranlib" \
        CFLAGS=-DUSE_MALLOC_USABLE_SIZE uname_M="$architecture" >"$folder.log" 2>&1 ||
        die "it does not build: $(tail -n 20 "$folder.log")"
    mkdir -p "$folder"
    cp "$folder.loader"/lib/ld-musl-*.so.1 "$folder/ld-musl.so.1"
    for program in server cli; do
        cp "$folder.source"/redis-*/src/redis-"$program" "$folder/redis-$program.musl"
    done
    rm -r "$folder.source" "$folder.loader"
fi
emulator=
if [[ $architecture != "$(uname -m)" ]]; then emulator=$(emulator /); fi
program "$folder/redis-server" "$emulator $folder/ld-musl.so.1 $folder/redis-server.musl"
