#!/usr/bin/env bash
# The tarball and the Debian package as a user has them: unpacked or installed in clean containers of Debian, beside the
# server of the distribution, the line added that is printed. Records its counts for scripts/test.sh.
source "$(dirname "$0")/lib.sh"

container=
clean_up() {
    if [[ $container ]]; then docker rm --force "$container" >/dev/null; fi
    container=
}
trap clean_up EXIT

inside() {
    docker exec "$container" "$@"
}

# answers OPTION...: the server that `redis-cli OPTION...` finds decides as the README says. It may still be starting.
answers() {
    local answer
    for _ in {1..60}; do
        answer=$(inside "$family-cli" "$@" -e CL.THROTTLE visitor 15 30 3600 4 2>&1)
        if [[ $answer == $'0\n16\n12\n-1\n480' ]]; then return; fi
        sleep 0.5
    done
    echo "the answer stays $answer"
    return 1
}

# added: the files that the image does not have, but for the notes of apt and dpkg.
added() {
    docker diff "$container" | grep '^A' | grep -vE ' /(var/(cache|lib)/(apt|dpkg)|var/log)(/|$)' | sort
}

checksums_verify() {
    inside sh -c 'cd /dist && sha256sum --check --strict SHA256SUMS &&
        tar -xf redis-cell-*.tar.gz -C /opt && cd /opt/redis-cell-* && sha256sum --check --strict --quiet SHA256SUMS'
}

purge_leaves_nothing() {
    local before
    before=$(added)
    inside apt-get -qq install "/dist/$deb" && [[ $(added) != "$before" ]] &&
        inside apt-get -qq purge redis-cell && diff <(echo "$before") <(added)
}

printed_line_loads() {
    local line
    line=$(inside apt-get -qq install "/dist/$deb" | grep "^loadmodule /usr/lib/$family/modules/") &&
        inside sh -c "echo '$line' >>/etc/$family/$family.conf" && inside "/etc/init.d/$family-server" start && answers
}

removal_warns() {
    inside apt-get -qq remove redis-cell | grep "take the line with libredis_cell.so out of /etc/$family/$family.conf"
}

# As the README tells: the module to where the server's service may map it, the snippet for the line.
tarball_loads() {
    inside sh -c "cd /opt/redis-cell-* && install -D libredis_cell.so /usr/lib/redis/modules/libredis_cell.so &&
        $family-server redis-cell.conf --port 7000 --save '' --daemonize yes" && answers -p 7000
}

# The same packages, to the byte, from the same module.
made_again() {
    scripts/package.sh && diff <(inside cat /dist/SHA256SUMS) target/dist/SHA256SUMS
}

lintian_is_content() {
    inside lintian --allow-root --fail-on error,warning "/dist/$deb"
}

# start IMAGE: a container that has what `make release` gives in /dist, and no network.
start() {
    container=$(docker run --detach --init --network none --env DEBIAN_FRONTEND=noninteractive "$1" sleep infinity)
    docker cp target/dist/. "$container:/dist"
}

scripts/package.sh
deb=$(basename target/dist/*.deb)

for server in redis-7.0 redis-8.0 valkey-8.1; do
    family=${server%-*}
    start "$(docker/server.sh "$server")"
    suite "tarball and .deb, $server" \
        checks checksums_verify purge_leaves_nothing printed_line_loads removal_warns tarball_loads
    clean_up
done

docker/base.sh trixie
say "building redis-cell-test:lintian"
docker build --quiet --tag redis-cell-test:lintian - <docker/Dockerfile.lintian
start redis-cell-test:lintian
suite "the .deb itself" checks lintian_is_content made_again
