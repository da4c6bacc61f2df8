#!/usr/bin/env bash
# Runs the live suite in a container for each server in docker/matrix.tsv, all with the same portable module. Records
# its counts for scripts/test.sh, which runs it.
source "$(dirname "$0")/lib.sh"

container=
clean_up() {
    if [[ $container ]]; then docker rm --force "$container" >/dev/null 2>&1 || true; fi
    container=
}
trap clean_up EXIT

scripts/release.sh --tests
library=$(scripts/functions.sh)
while read -r name base _ package <&3; do
    image=$(docker/server.sh "$name")
    # The module and the suite are copied into the container. The image has only the server, and is built once.
    container=$(docker create --init --network none --user nobody --tmpfs /tmp \
        --env RUST_TEST_THREADS="$((4 * $(nproc)))" \
        --env REDIS_CELL_SERVER="$package" \
        --env REDIS_CELL_MODULE=/suite/modules/libredis_cell.so \
        --env REDIS_CELL_FAULTY_MODULE=/suite/modules/libredis_cell_faulty.so \
        --env REDIS_CELL_FUNCTIONS=/suite/redis_cell.lua \
        "$image" /suite/live)
    tar -c -C target/suite --transform "s,^linux-$(uname -m),modules,;s,^,suite/," live "linux-$(uname -m)" |
        docker cp - "$container:/"
    docker cp --quiet "$library" "$container:/suite/redis_cell.lua"
    suite "$(server_name "$(docker run --rm --network none "$image" "$package" --version)"), portable, in $base" \
        docker start --attach "$container"
    clean_up
done 3< <(grep -v '^#' docker/matrix.tsv)
