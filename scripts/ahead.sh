#!/usr/bin/env bash
# Builds and fetches what the later stages of scripts/test.sh need, at the lowest priority. With `first`, the image of
# the stage container and the packages of the Python client; with `all`, the portable modules, the servers of other
# platforms, and the images of servers and of the examples. If a step fails, the stage that needs it repeats it and
# reports the error.
source "$(dirname "$0")/lib.sh"
renice -n 19 $$ >/dev/null

if [[ $1 == first ]]; then
    if ! engine_missing; then docker/server.sh redis-8.0 & fi
    python_venv clients/python/requirements/newest.txt clients/python
    wait
    exit
fi

images() {
    local name
    if engine_missing; then return; fi
    while read -r name _ <&3; do
        docker/server.sh "$name"
    done 3< <(grep -v '^#' docker/matrix.tsv)
    test_images
}
images &

own=$(uname -m)
scripts/release.sh --tests "$own" x86_64-musl aarch64-musl aarch64
for platform in x86_64-musl aarch64-musl; do scripts/platform-server.sh "$platform"; done
if [[ $own != aarch64 ]]; then
    for kind in redis valkey; do scripts/platform-server.sh aarch64 "$kind"; done
fi
scripts/platform-server.sh "$own" redis sid,experimental
scripts/platform-server.sh "$own" valkey sid
wait
