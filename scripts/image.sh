#!/usr/bin/env bash
# The image a user runs: redis-cell, from docker/Dockerfile and the portable module.
source "$(dirname "$0")/lib.sh"
scripts/release.sh
docker/base.sh trixie
labels=(--label "org.opencontainers.image.version=$(version)")
if revision=$(git rev-parse HEAD 2>/dev/null); then
    labels+=(--label "org.opencontainers.image.revision=$revision")
fi
# The engine needs these three files, not the whole checkout.
tar -c -C docker Dockerfile redis.conf -C ../target/dist libredis_cell.so |
    docker build --quiet "${labels[@]}" --tag redis-cell -
echo "built: docker run --rm -p 127.0.0.1:6379:6379 redis-cell"
