#!/usr/bin/env bash
# The image for users: redis-cell, from docker/Dockerfile and the portable module. With the argument alpine
# redis-cell:alpine, from docker/Dockerfile.alpine and the module for musl; with the argument stand-in the same as
# redis-cell-test:alpine, on a stand-in for Alpine that is made here.
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
*) docker/base.sh trixie ;;
esac
if [[ ${1:-} == stand-in ]]; then
    docker/alpine.sh
    base=(--build-arg BASE=redis-cell-test:alpine-base)
    image=redis-cell-test:alpine
fi
scripts/release.sh "$platform"
labels=(--label "org.opencontainers.image.version=$(version)")
if revision=$(git rev-parse HEAD 2>/dev/null); then
    labels+=(--label "org.opencontainers.image.revision=$revision")
fi
library=$(scripts/functions.sh)
# The engine needs these four files, not the whole checkout.
tar -c -C docker "$dockerfile" redis.conf -C "../target/dist/linux-$platform" libredis_cell.so \
    -C "${library%/*}" "${library##*/}" |
    docker build --quiet "${labels[@]}" "${base[@]}" --file "$dockerfile" --tag "$image" -
echo "built: docker run --rm -p 127.0.0.1:6379:6379 $image"
