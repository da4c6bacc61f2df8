#!/usr/bin/env bash
# The image for users: redis-cell, from docker/Dockerfile and the portable module. With the argument alpine
# redis-cell:alpine, from docker/Dockerfile.alpine and the module for musl.
source "$(dirname "$0")/lib.sh"
platform=$(uname -m)
dockerfile=Dockerfile
image=redis-cell
if [[ ${1:-} == alpine ]]; then
    platform+=-musl
    dockerfile+=.alpine
    image+=:alpine
else
    docker/base.sh trixie
fi
scripts/release.sh "$platform"
labels=(--label "org.opencontainers.image.version=$(version)")
if revision=$(git rev-parse HEAD 2>/dev/null); then
    labels+=(--label "org.opencontainers.image.revision=$revision")
fi
# The engine needs these three files, not the whole checkout.
tar -c -C docker "$dockerfile" redis.conf -C "../target/dist/linux-$platform" libredis_cell.so |
    docker build --quiet "${labels[@]}" --file "$dockerfile" --tag "$image" -
echo "built: docker run --rm -p 127.0.0.1:6379:6379 $image"
