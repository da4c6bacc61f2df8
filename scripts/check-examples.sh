#!/usr/bin/env bash
# Runs the examples named as arguments where their runtimes are, and holds what they print against examples/expected.txt.
# The server that is down is one where nobody listens, then one that is frozen: it accepts connections and never answers.
# scripts/test-examples.sh runs it, here and in a container.
source "$(dirname "$0")/lib.sh"

command_of() {
    case $1 in
    python) echo "python3 examples/python/throttle.py" ;;
    python-asyncio) echo "python3 examples/python/throttle_async.py" ;;
    rust) echo "target/release/examples/throttle" ;;
    c) echo "$built/c" ;;
    go) echo "$built/go" ;;
    node) echo "node examples/node/throttle.js" ;;
    php) echo "php examples/php/throttle.php" ;;
    ruby) echo "ruby examples/ruby/throttle.rb" ;;
    shell) echo "examples/shell/throttle.sh" ;;
    *) die "no example is called $1" ;;
    esac
}

compile() {
    case $1 in
    c) cc -Wall -Wextra -Werror -o "$built/c" examples/c/throttle.c -lhiredis ;;
    go) go build -o "$built/go" examples/go/throttle.go ;;
    esac
}

# says_as_expected NAME PORT_DOWN. A machine that stands still for a second shows other numbers, hence the attempts.
says_as_expected() {
    local command arguments=("redis://127.0.0.1:$port" "redis://127.0.0.1:$2")
    read -ra command <<<"$(command_of "$1")"
    case $1 in c | php) arguments=(127.0.0.1 "$port" 127.0.0.1 "$2") ;; esac
    for _ in {1..3}; do
        if timeout 60 "${command[@]}" "${arguments[@]}" >"$built/out" 2>"$built/errors" &&
            diff examples/expected.txt "$built/out" >"$built/diff"; then
            return
        fi
    done
    cat "$built/diff" "$built/errors"
    return 1
}

http() {
    REDIS_URL=redis://127.0.0.1:$port REDIS_URL_DOWN=redis://127.0.0.1:$1 \
        timeout 300 python3 -m unittest discover --start-directory examples/http 2>&1
}

# Speaks as `cargo test` does, for `suite` to count.
passed=0
failed=0
report() {
    local test=$1
    shift
    if "$@"; then
        echo "test $test ... ok"
        passed=$((passed + 1))
    else
        echo "test $test ... FAILED"
        failed=$((failed + 1))
    fi
}

server=$(find_server)
built=$(mktemp -d)
start_server
frozen=$port frozen_pid=$pid frozen_dir=$dir
start_server
clean_up() {
    { kill -KILL "$frozen_pid" && wait "$frozen_pid"; } 2>/dev/null || true # the shell would tell of it
    rm -rf "$frozen_dir" "$built"
    stop_server
}
trap clean_up EXIT
kill -STOP "$frozen_pid"

for name in "$@"; do
    case $name in
    http) report "http" http "$frozen" ;;
    *)
        case $name in c | go) report "$name: compiles" compile "$name" ;; esac
        report "$name: nobody listens" says_as_expected "$name" 1
        report "$name: a frozen server" says_as_expected "$name" "$frozen"
        ;;
    esac
done
echo "test result: $( ((failed)) && echo FAILED || echo ok). $passed passed; $failed failed"
