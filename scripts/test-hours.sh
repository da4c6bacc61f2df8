#!/usr/bin/env bash
# Runs the tests that read a clock just before and just after the instants at which windows end: an hour, midnight, a
# week, a month, a year, 28 February, and 29 February. Tests and servers use the clock of tests/common/clock_shim.c.
# Each Rust test runs alone, on a clock that starts at the instant. The Python tests run file by file. Arguments choose
# suites: live, functions, reliability, rust and python. By default, all but reliability run: its tests load the machine
# and wait for each other, which is not possible when each runs alone, so choose some of them with TESTS. INSTANTS
# chooses instants by name, LEADS the milliseconds by which clocks begin before them, and TESTS the Rust tests by a part
# of their names.
source "$(dirname "$0")/lib.sh"

declare -A instants=(
    [hour]="2027-03-10 14:00:00"
    [midnight]="2027-03-11 00:00:00"
    [week]="2027-03-15 00:00:00"
    [month]="2027-05-01 00:00:00"
    [year]="2028-01-01 00:00:00"
    [28-february]="2028-02-28 00:00:00"
    [29-february]="2028-02-29 00:00:00"
    [leap-day-ends]="2028-03-01 00:00:00"
    [28-february-ends]="2027-03-01 00:00:00"
)
RESULTS=$(mktemp -p target)
export RESULTS
trap 'rm -f "$RESULTS" "$RESULTS.failures"' EXIT

mkdir -p target/tmp
SHIM=$PWD/target/tmp/clock_shim_hours.so
export SHIM
cc -O2 -shared -fPIC -o "$SHIM" tests/common/clock_shim.c

# at INSTANT COMMAND...: runs the command on a clock that begins at the instant, in milliseconds since the epoch. Shows
# its output if it fails, otherwise only its counts.
at() {
    local log code=0
    log=$(mktemp)
    REDIS_CELL_CLOCK_AHEAD=$(($1 * 1000000 - $(date +%s%N))) LD_PRELOAD=$SHIM "${@:2}" >"$log" 2>&1 || code=$?
    if ((code == 0)); then
        grep -E '^test result:|^[0-9]+ passed.* in [0-9.]+s' "$log" || true
    else
        cat "$log"
    fi
    rm "$log"
    return "$code"
}
export -f at

# programs ARGUMENT...: builds tests and the examples that they run, and prints the paths of the tests.
programs() {
    cargo test --locked --no-run --message-format=json-render-diagnostics "$@" |
        grep '"test":true}' | grep -oE '"executable":"[^"]+"' | cut -d '"' -f 4
}

# each FOLDER PROGRAM: runs each test of a program separately, four at a time for each processor, because they mostly
# wait for their servers.
each() {
    (
        cd "$1"
        "$2" --list --format terse 2>/dev/null | sed -n 's/: test$//p' | grep -F -e "${TESTS:-}" |
            xargs -P $((4 * $(nproc))) -I {} bash -c "at $instant '$2' --exact {}"
    )
}

suite_live() { each . "${built[live]}"; }
suite_functions() { each . "${built[functions]}"; }
suite_reliability() { each . "${built[reliability]}"; }
suite_rust() {
    local program
    for program in ${built[rust]}; do each clients/rust "$program"; done
}
suite_python() {
    local file
    (
        cd clients/python
        printf '%s\n' tests/test_*.py | grep -v -e test_types -e test_pages |
            xargs -P $((2 * $(nproc))) -I {} bash -c "at $instant '${built[python]}/bin/python' -m pytest --quiet -p no:cacheprovider {}"
    )
}

suites=${*:-live functions rust python}
declare -A built # for each suite, its programs, or the folder of its virtual environment
use_plain_build
for name in $suites; do
    case $name in
    live | functions | reliability) built[$name]=$(programs -p redis-cell-tests --test "$name") ;;
    rust) built[rust]=$(programs -p redis-cell-client) ;;
    python) built[python]=$(python_venv clients/python/requirements/newest.txt clients/python) ;;
    *) die "no suite of this name: $name" ;;
    esac
done
for name in ${INSTANTS:-hour midnight week month year 28-february 29-february leap-day-ends 28-february-ends}; do
    for lead in ${LEADS:-400 0}; do
        instant=$(($(date --utc --date "${instants[$name]}" +%s) * 1000 - lead))
        for suite in $suites; do
            suite "$suite, $lead ms before ${instants[$name]}" "suite_$suite"
        done
    done
done
awk -F '\t' '
    { printf "%-56s %7d %7d %8d\n", $1, $2, $3, $4; p += $2; f += $3 }
    END { print p " passed, " f " failed"; exit f > 0 }' "$RESULTS"
