#!/usr/bin/env bash
# The live suite in a container for each server of docker/matrix.tsv, then the image, the packages and the monitoring that a user
# has, all with the same portable module. Records its counts for scripts/test.sh, which runs it.
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
    local name base package image
    while read -r name base _ package <&3; do
        image=$(docker/server.sh "$name")
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

gets_healthy() {
    healthy "$container"
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
    docker restart "$container" && gets_healthy && [[ $state && $(cli GET visitor) == "$state" ]]
}

# Version and commit are those of this tree; without git no commit is named.
is_labelled() {
    local labels label revision
    labels=$(docker inspect --format '{{json .Config.Labels}}' "$container")
    revision=$(git rev-parse HEAD 2>/dev/null) || true
    for label in title description licenses "version\":\"$(version)" ${revision:+"revision\":\"$revision"}; do
        if [[ $labels != *"org.opencontainers.image.$label\""* ]]; then
            echo "no $label in $labels"
            return 1
        fi
    done
}

user_image() {
    checks gets_healthy not_root answers takes_options survives_restart is_labelled || docker logs "$container"
}

scripts/release.sh --tests
matrix
scripts/image.sh
volume=$(docker volume create)
container=$(docker run --detach --network none --health-interval 1s --volume "$volume:/data" redis-cell --maxmemory 64mb)
suite "the image redis-cell" user_image
scripts/test-compose.sh
scripts/test-packages.sh
scripts/test-monitoring.sh
