#!/usr/bin/env bash
# docker/compose.yaml as the README starts it, on other ports and volumes: a primary and its replica, which keep their data.
# Needs the image redis-cell. Records its counts for scripts/test.sh.
source "$(dirname "$0")/lib.sh"

# find_compose: the plugin of docker, or the program that it grew from.
find_compose() {
    if docker compose version >/dev/null 2>&1; then
        compose=(docker compose)
    else
        command -v docker-compose >/dev/null && compose=(docker-compose)
    fi
}

if ! find_compose; then
    if [[ ${CI:-} != true ]]; then
        record "docker/compose.yaml: skipped, no docker compose" 0 0 0
        exit
    fi
    apt_install docker-compose
    find_compose
fi
# 0: a port that is free
export REDIS_CELL_PORT=0 REDIS_CELL_REPLICA_PORT=0 REDIS_CELL_VOLUMES=redis-cell-test-$$
compose+=(--project-name "$REDIS_CELL_VOLUMES" --file docker/compose.yaml)
trap '"${compose[@]}" down --volumes >/dev/null 2>&1' EXIT

cli() {
    "${compose[@]}" exec -T "$1" redis-cli -e "${@:2}"
}

up() {
    "${compose[@]}" up --detach && healthy "$("${compose[@]}" ps --quiet primary)" &&
        healthy "$("${compose[@]}" ps --quiet replica)"
}

answers() {
    [[ $(cli primary CL.THROTTLE visitor 15 30 3600 4) == $'0\n16\n12\n-1\n480' && $(cli primary WAIT 1 30000) == 1 ]]
}

# same_state: visitor is known, and to the digit the same on both.
same_state() {
    state=$(cli primary GET visitor)
    [[ $state && $(cli replica GET visitor) == "$state" ]]
}

replica_looks_and_takes_nothing() {
    [[ $(cli replica CL.PEEK visitor 15 30 3600) == $'0\n16\n12\n-1\n'* &&
        $(cli replica CL.THROTTLE visitor 15 30 3600 2>&1) == READONLY* ]]
}

survives_down_and_up() {
    local before=$state
    "${compose[@]}" down && up && same_state && [[ $state == "$before" ]]
}

primary_and_replica() {
    checks up answers same_state replica_looks_and_takes_nothing survives_down_and_up || "${compose[@]}" logs
}

suite "docker/compose.yaml" primary_and_replica
