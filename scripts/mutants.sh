#!/usr/bin/env bash
# Tests mutants: single changes of operators, values and branches, except for those in scripts/mutants.txt. The core's
# own tests must detect those of the core; the simulator, the live suite and a part of the reliability suite those of
# src and ffi, which scripts/mutants.py puts into one build. Hours. mutants.sh FILE... takes only these files, such as
# core/src/queue.rs or src/store/gcra.rs.
source "$(dirname "$0")/lib.sh"
version=27.1.0

need_compiler
export tool=$PWD/target/tools/bin/cargo-mutants folder=$PWD/target/mutants
if [[ $("$tool" mutants --version 2>/dev/null) != *" $version" ]]; then
    cargo install --quiet --locked --version "$version" --root target/tools cargo-mutants
fi

# copy FOLDER: copies the tree, newer than what was built before.
copy() {
    mkdir -p "$1"
    git ls-files -z | xargs -0 cp --parents --preserve=mode -t "$1"
}

# look_at FILE SECONDS ARGUMENT...: tests the mutants of a file that no earlier tests have found, in the tree of this
# $slot. A mutant whose tests take longer than SECONDS counts as one that never ends, and is found.
look_at() {
    local code=0 out=$folder/${1//\//.}
    if [[ -e $out/mutants.out && ! -s $out/mutants.out/missed.txt ]]; then return; fi # all are found
    mkdir -p "$out"
    (
        cd "$folder/tree-$slot"
        CARGO_TARGET_DIR=$folder/build-$slot "$tool" mutants --in-place --iterate --profile mutants --file "$1" \
            --package redis-cell-core --timeout "$2" --output "$out" --colors never "${@:3}"
    ) || code=$?
    # 2 and 3 mean that mutants were missed or never ended. Any other code is a failure of the tool.
    ((code == 0 || code == 2 || code == 3)) || die "cargo mutants: $code"
    if [[ -e $out/mutants.out ]]; then cat "$out/mutants.out/timeout.txt" >>"$out/mutants.out/caught.txt"; fi
}

# mutants_of FILE: tests the mutants of a file of the core, first with the tests that are the most likely to find them.
mutants_of() {
    local own
    own=$(basename "$1" .rs)
    if [[ -e core/tests/$own.rs ]]; then look_at "$1" 60 --cargo-arg=--test --cargo-arg="$own"; fi
    look_at "$1" 120 --cargo-arg=--tests
}

# core FILE...: tests the mutants of files of the core.
core() {
    local found missed
    rm -rf "$folder"/{tree-,*.rs}*
    for slot in 0 1; do copy "$folder/tree-$slot"; done # each of two files at a time has a tree
    export PROPTEST_DISABLE_FAILURE_PERSISTENCE=1       # no mutant is found by the cases that have found another
    two_at_a_time mutants_of "$@"
    found=$(cat "$folder"/*/mutants.out/{caught,previously_caught}.txt 2>/dev/null | sort -u | wc -l)
    ((found > 0)) || die "no mutant was looked at"
    cat "$folder"/*/mutants.out/missed.txt >"$folder/missed.txt"
    echo "$found mutants were found or do not compile, $(wc -l <"$folder/missed.txt") were not found"
    missed=$(grep -vEf <(grep -E '^[^#]' scripts/mutants.txt) "$folder/missed.txt") || true
    [[ ! $missed ]] || die "found by no test, and not in scripts/mutants.txt:"$'\n'"$missed"
}

# module FILE...: tests the mutants of files of src and ffi.
module() {
    local python
    python=$(python_venv scripts/mutants.requirements.txt)/bin/python
    REDIS_CELL_SERVER=$(find_server)
    scripts/build.sh --tests
    cargo build --quiet --profile suite --locked -p redis-cell-simulator
    # binary NAME: prints the path of a test program.
    binary() {
        cargo test --quiet --locked --no-run --test "$1" --message-format json |
            sed -n 's/.*"executable":"\([^"]*\/'"$1"'-[^"]*\)".*/\1/p'
    }
    LIVE=$(binary live)
    RELIABILITY=$(binary reliability)
    REDIS_CELL_FAULTY_MODULE=$PWD/target/suite/libredis_cell_faulty.so
    RUST_TEST_THREADS=$((4 * $(nproc))) # they mostly wait for their servers
    export REDIS_CELL_SERVER REDIS_CELL_FAULTY_MODULE RUST_TEST_THREADS LIVE RELIABILITY
    rm -rf "$folder"/module/{core,src,ffi} "$folder"/module/*.{json,so}
    copy "$folder/module"
    "$tool" mutants --list --json --workspace "${@/#/--file=}" >"$folder/list.json"
    "$python" scripts/mutants.py build "$folder/list.json" "$folder/module"
    "$python" scripts/mutants.py run "$folder/module"
}

files=("$@")
# The other branch of ffi/src/faults.rs is not in the module.
if (($# == 0)); then mapfile -t files < <(git ls-files core/src src ffi/src | grep -v faults.rs); fi
mapfile -t cores < <(printf '%s\n' "${files[@]}" | grep ^core/)
mapfile -t others < <(printf '%s\n' "${files[@]}" | grep -v ^core/)
if ((${#others[@]})); then module "${others[@]}"; fi
if ((${#cores[@]})); then core "${cores[@]}"; fi
