#!/usr/bin/env bash
# The programs of examples/ against a server with the module: Rust here, the other languages in a container that has their
# runtimes (docker/Dockerfile.examples), if there is an engine. Records its counts for scripts/test.sh, which runs it.
source "$(dirname "$0")/lib.sh"

command -v redis-cli >/dev/null || apt_install redis-tools
scripts/build.sh
cargo build --release --locked --example throttle
suite "examples: Rust" scripts/check-examples.sh rust

if [[ ${1:-} == --without-docker ]]; then exit; fi
scripts/release.sh
docker/base.sh trixie
say "building redis-cell-test:examples"
docker build --quiet --tag redis-cell-test:examples - <docker/Dockerfile.examples
container=$(docker create --init --network none redis-cell-test:examples \
    scripts/check-examples.sh c go node php python python-asyncio ruby shell http)
trap 'docker rm --force "$container" >/dev/null' EXIT
tar -c scripts examples --transform s,^target/dist,target/release, target/dist/libredis_cell.so |
    docker cp - "$container:/redis-cell"
suite "examples: all other languages, and HTTP" docker start --attach "$container"
