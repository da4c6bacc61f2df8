#!/usr/bin/env bash
# deploy/prometheus as docs/prometheus.md tells: a server, redis_exporter and Prometheus of Debian in one container without a
# network, and the series that come of some calls. Records its counts for scripts/test.sh.
source "$(dirname "$0")/lib.sh"

container=
trap 'if [[ $container ]]; then docker rm --force "$container" >/dev/null; fi' EXIT

inside() {
    docker exec --workdir /deploy "$container" "$@"
}

configuration_holds() {
    inside promtool check config prometheus.yml && inside promtool test rules rules_test.yml
}

# One admitted, two refused, one error, one who waits in line.
calls() {
    local _
    for _ in 1 2 3; do inside redis-cli CL.THROTTLE key 0 1 600; done
    inside redis-cli CL.THROTTLE key none 1 600
    docker exec --detach "$container" redis-cli CL.BTHROTTLE key 0 1 600 1 0
}

series_appear() {
    local answer expected _
    expected='redis_cell_blocked_clients{} => 1
redis_cell_calls_total{command="throttle", result="admitted"} => 1
redis_cell_calls_total{command="throttle", result="errors"} => 1
redis_cell_calls_total{command="throttle", result="refused"} => 2'
    calls
    for _ in {1..60}; do
        answer=$(inside promtool query instant http://127.0.0.1:9090 \
            'redis_cell_calls_total{command="throttle"} or redis_cell_blocked_clients' 2>&1 |
            sed 's/ @.*//; s/instance="[^"]*", job="redis-cell",* *//' | LC_ALL=C sort)
        if [[ $answer == "$expected" ]]; then return; fi
        sleep 0.5
    done
    echo "Prometheus keeps saying: $answer"
    inside redis-cli INFO redis-cell
    return 1
}

scripts/release.sh
docker/base.sh trixie
say "building redis-cell-test:monitoring"
docker build --quiet --tag redis-cell-test:monitoring - <docker/Dockerfile.monitoring
container=$(docker run --detach --init --network none redis-cell-test:monitoring sleep infinity)
docker cp target/dist/libredis_cell.so "$container:/usr/lib"
docker cp deploy/prometheus/. "$container:/deploy"
inside redis-server --loadmodule /usr/lib/libredis_cell.so --save '' --daemonize yes >/dev/null
# With no more rights than the page gives it.
read -ra acl < <(grep '^ACL SETUSER' docs/prometheus.md)
inside redis-cli -e "${acl[@]}"
docker exec --detach --workdir /deploy "$container" prometheus-redis-exporter --script redis-cell.lua \
    --redis.user exporter --redis.password secret
# Fifteen seconds are long for a test.
inside sed -i 's/interval: 15s/interval: 1s/' prometheus.yml
docker exec --detach --workdir /deploy "$container" prometheus --config.file prometheus.yml --storage.tsdb.path /tmp/data
suite "deploy/prometheus" checks configuration_holds series_appear
