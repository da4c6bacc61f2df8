#!/usr/bin/env bash
# Tests mutants: single changes of operators, values and branches, except for those in scripts/mutants.txt. The core's
# own tests must detect those of the core; the simulator, the live suite and a part of the reliability suite those of
# src and ffi, which scripts/mutants.py puts into one build. Hours. mutants.sh FILE... takes only these files, such as
# core/src/queue.rs or src/store/gcra.rs. A run that was interrupted, or that has not found all, continues from its end,
# if core, src and ffi are the same: mutants.sh again. Before mutants that survived are tried in other histories, remove
# target/mutants/module/{survived,histories,reach}.json.
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

# sources FILE...: prints what a build depends on.
sources() {
    echo "$@"
    git ls-files -z core src ffi Cargo.lock | xargs -0 sha256sum
}

# run NAME FILE...: tests the mutants of these files in a copy of the tree.
run() {
    local copy=$folder/$1 python
    shift
    python=$(python_venv scripts/mutants.requirements.txt)/bin/python
    if ! sources "$@" | cmp -s - "$copy/sources"; then
        rm -rf "$copy"/{core,src,ffi,all,sources} "$copy"/*.{json,so}
        copy "$copy"
        "$tool" mutants --list --json --workspace "${@/#/--file=}" >"$folder/list.json"
        "$python" scripts/mutants.py build "$folder/list.json" "$copy"
        sources "$@" >"$copy/sources"
    fi
    "$python" scripts/mutants.py run "$copy"
    rm "$copy/sources"
}

# module FILE...: tests the mutants of files of src and ffi.
module() {
    REDIS_CELL_SERVER=$(find_server)
    scripts/build.sh --tests
    cargo build --quiet --profile suite --locked -p redis-cell-simulator
    # binary NAME: prints the path of a test program.
    binary() {
        cargo test --quiet --locked --no-run -p redis-cell-tests --test "$1" --message-format json |
            sed -n 's/.*"executable":"\([^"]*\/'"$1"'-[^"]*\)".*/\1/p'
    }
    LIVE=$(binary live)
    RELIABILITY=$(binary reliability)
    REDIS_CELL_FAULTY_MODULE=$PWD/target/suite/libredis_cell_faulty.so
    RUST_TEST_THREADS=$((4 * $(nproc))) # they mostly wait for their servers
    export REDIS_CELL_SERVER REDIS_CELL_FAULTY_MODULE RUST_TEST_THREADS LIVE RELIABILITY
    run module "$@"
}

files=("$@")
# The other branch of ffi/src/faults.rs is not in the module.
if (($# == 0)); then mapfile -t files < <(git ls-files core/src src ffi/src | grep -v faults.rs); fi
mapfile -t cores < <(printf '%s\n' "${files[@]}" | grep ^core/)
mapfile -t others < <(printf '%s\n' "${files[@]}" | grep -v ^core/)
if ((${#others[@]})); then module "${others[@]}"; fi
export PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 # no mutant is found by the cases that have found another
if ((${#cores[@]})); then run core "${cores[@]}"; fi
