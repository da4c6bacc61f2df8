#!/usr/bin/env bash
# The live suite in a container for each server of docker/matrix.tsv, then the image a user runs, all with the same
# portable module. Records its counts for scripts/test.sh, which runs it.
source "$(dirname "$0")/lib.sh"

container=
volume=
clean_up() {
    if [[ $container ]]; then docker rm --force "$container" >/dev/null 2>&1 || true; fi
    if [[ $volume ]]; then docker volume rm "$volume" >/dev/null; fi
    container=
    volume=
}
trap clean_up EXIT

matrix() {
    local name suite base package image
    while read -r name base suite package <&3; do
        image=redis-cell-test:$name
        docker/base.sh "$base"
        say "building $image"
        docker build --quiet --tag "$image" \
            --build-arg BASE="$base" --build-arg SUITE="$suite" --build-arg PACKAGE="$package" - <docker/Dockerfile.test
        # Module and suite are copied into the container, not the image: that holds the server alone and is built once.
        container=$(docker create --init --network none --user nobody --tmpfs /tmp \
            --env REDIS_CELL_SERVER="$package" \
            --env REDIS_CELL_MODULE=/suite/libredis_cell.so \
            --env REDIS_CELL_FAULTY_MODULE=/suite/libredis_cell_faulty.so \
            "$image" /suite/live)
        docker cp target/suite/. "$container:/suite"
        suite "$(server_name "$(docker run --rm --network none "$image" "$package" --version)"), portable, in $base" \
            docker start --attach "$container"
        clean_up
    done 3< <(grep -v '^#' docker/matrix.tsv)
}

cli() {
    docker exec "$container" redis-cli -e "$@"
}

healthy() {
    local state
    for _ in {1..60}; do
        state=$(docker inspect --format '{{.State.Health.Status}}' "$container")
        if [[ $state == healthy ]]; then return; fi
        sleep 0.5
    done
    echo "the container stays $state"
    return 1
}

not_root() {
    [[ $(docker exec "$container" id -u) != 0 ]]
}

answers() {
    [[ $(cli CL.THROTTLE visitor 15 30 3600 4) == $'0\n16\n12\n-1\n480' ]]
}

takes_options() {
    [[ $(cli CONFIG GET maxmemory) == $'maxmemory\n67108864' ]]
}

survives_restart() {
    local state
    state=$(cli GET visitor)
    docker restart "$container" && healthy && [[ $state && $(cli GET visitor) == "$state" ]]
}

# Speaks as `cargo test` does, for `suite` to count.
user_image() {
    local test passed=0 failed=0
    for test in healthy not_root answers takes_options survives_restart; do
        if "$test"; then
            echo "test $test ... ok"
            passed=$((passed + 1))
        else
            echo "test $test ... FAILED"
            failed=$((failed + 1))
        fi
    done
    if ((failed)); then docker logs "$container"; fi
    echo "test result: $( ((failed)) && echo FAILED || echo ok). $passed passed; $failed failed"
}

scripts/release.sh --tests
matrix
scripts/image.sh
volume=$(docker volume create)
container=$(docker run --detach --network none --health-interval 1s --volume "$volume:/data" redis-cell --maxmemory 64mb)
suite "the image redis-cell" user_image
