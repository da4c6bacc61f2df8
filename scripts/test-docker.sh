#!/usr/bin/env bash
# Runs the live suite in a container for each server in docker/matrix.tsv, all with the same portable module: the whole
# suite in the oldest server and in the newest of each family, and what depends on a server in the others. With
# --transcripts, runs the documented transcripts with a plain build, in the current Debian's server only. Records its
# counts for scripts/test.sh, which runs it.
source "$(dirname "$0")/lib.sh"

container=
clean_up() {
    if [[ $container ]]; then docker rm --force "$container" >/dev/null 2>&1 || true; fi
    container=
}
trap clean_up EXIT

if [[ ${1:-} == --transcripts ]]; then
    build=plain server=redis-8.0 tests=(transcripts::) folder=target/plain
    scripts/build.sh --tests
    mkdir -p "$folder/linux-$(uname -m)"
    cp target/suite/libredis_cell*.so "$folder/linux-$(uname -m)"
    cp "$(cargo test --locked --no-run -p redis-cell-tests --test live --message-format=json-render-diagnostics |
        grep -oE '"executable":"[^"]+"' | cut -d '"' -f 4)" "$folder/live"
else
    build=portable server='.*' tests=() folder=target/suite
    scripts/release.sh --tests
fi
library=$(scripts/functions.sh)
while read -r name base _ package <&3; do
    image=$(docker/server.sh "$name")
    if [[ $build == portable ]]; then
        case $name in
        redis-6.0 | redis-8.6 | valkey-9.1) tests=() ;;
        *) tests=("${by_server[@]}") ;;
        esac
    fi
    # The module and the suite are copied into the container. The image has only the server, and is built once.
    container=$(docker create --init --network none --user nobody --tmpfs /tmp \
        --env RUST_TEST_THREADS="$((4 * $(nproc)))" \
        --env REDIS_CELL_SERVER="$package" \
        --env REDIS_CELL_MODULE=/suite/modules/libredis_cell.so \
        --env REDIS_CELL_FAULTY_MODULE=/suite/modules/libredis_cell_faulty.so \
        --env REDIS_CELL_FUNCTIONS=/suite/redis_cell.lua \
        "$image" /suite/live "${tests[@]}")
    tar -c -C "$folder" --transform "s,^linux-$(uname -m),modules,;s,^,suite/," live "linux-$(uname -m)" |
        docker cp - "$container:/"
    docker cp --quiet "$library" "$container:/suite/redis_cell.lua"
    suite "$(server_name "$(docker run --rm --network none "$image" "$package" --version)"), $build, in $base" \
        docker start --attach "$container"
    clean_up
done 3< <(grep "^${server}[[:space:]]" docker/matrix.tsv | grep -v '^#')
