#!/usr/bin/env bash
# Builds everything that tests/shipping needs, and runs it: it tests the image, the compose file, the packages, the
# configuration of Prometheus and the programs of examples/. With --without-docker, runs only the examples that need no
# container. Records its counts for scripts/test.sh, which runs it.
source "$(dirname "$0")/lib.sh"

use_plain_build
cargo build --locked -p redis-cell-tests --example throttle
scripts/test-examples.sh
if [[ ${1:-} == --without-docker ]]; then
    suite "examples: Rust" cargo test --locked -p redis-cell-tests --test shipping -- examples::rust
    exit
fi

scripts/image.sh
scripts/image.sh stand-in
scripts/image.sh envoy-test
scripts/image.sh proxy
scripts/package.sh
for server in redis-7.0 redis-8.0 valkey-8.1; do
    docker/server.sh "$server" >/dev/null
done
test_images
if [[ ${CI:-} == true ]] && ! docker compose version >/dev/null 2>&1 && ! command -v docker-compose >/dev/null; then
    apt_install docker-compose
fi
suite "image, packages, Prometheus, examples" cargo test --locked -p redis-cell-tests --test shipping -- --test-threads 4
suite "image of the rate limit service" apps test -p redis-cell-envoy -- image::
