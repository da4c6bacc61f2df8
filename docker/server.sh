#!/usr/bin/env bash
# docker/server.sh NAME: makes sure that the image redis-cell-test:NAME exists, the server of that name in
# docker/matrix.tsv, without the module, and prints the name of the image.
source "$(dirname "$0")/../scripts/lib.sh"

read -r name base suites package < <(awk -v name="$1" '$1 == name' docker/matrix.tsv)
image=redis-cell-test:$name
docker/base.sh "$base"
say "building $image"
docker build --quiet --tag "$image" \
    --build-arg BASE="$base" --build-arg SUITES="$suites" --build-arg PACKAGE="$package" - <docker/Dockerfile.test >&2
echo "$image"
