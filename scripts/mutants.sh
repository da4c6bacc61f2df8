#!/usr/bin/env bash
# Tests mutants: single changes of operators, values and branches. The core's own tests must detect mutants of the core,
# and the live suite and two groups of the reliability suite mutants of the module's calls and states, except for those
# in scripts/mutants.txt. This takes hours. mutants.sh FILE... takes only these files, such as core/src/queue.rs or
# src/store/gcra.rs.
source "$(dirname "$0")/lib.sh"
version=27.1.0

need_compiler
export tool=$PWD/target/tools/bin/cargo-mutants folder=$PWD/target/mutants
if [[ $("$tool" mutants --version 2>/dev/null) != *" $version" ]]; then
    cargo install --quiet --locked --version "$version" --root target/tools cargo-mutants
fi

# look_at FILE SECONDS ARGUMENT...: tests the mutants of a file that no earlier tests have found, in the tree of this
# $slot. A mutant whose tests take longer than SECONDS counts as one that never ends, and is found.
look_at() {
    local code=0 out=$folder/${1//\//.}
    if [[ -e $out/mutants.out && ! -s $out/mutants.out/missed.txt ]]; then return; fi # all are found
    mkdir -p "$out"
    (
        cd "$folder/tree-$slot"
        CARGO_TARGET_DIR=$folder/build-$slot "$tool" mutants --in-place --iterate --profile mutants --file "$1" \
            --timeout "$2" --output "$out" --colors never "${@:3}"
    ) || code=$?
    # 2 and 3 mean that mutants were missed or never ended. Any other code is a failure of the tool.
    ((code == 0 || code == 2 || code == 3)) || die "cargo mutants: $code"
    if [[ -e $out/mutants.out ]]; then cat "$out/mutants.out/timeout.txt" >>"$out/mutants.out/caught.txt"; fi
}

# mutants_of FILE: tests the mutants of a file, first with the tests that are the most likely to find them.
mutants_of() {
    local own
    if [[ $1 == core/* ]]; then
        own=$(basename "$1" .rs)
        if [[ -e core/tests/$own.rs ]]; then
            look_at "$1" 60 --package redis-cell-core --cargo-arg=--test --cargo-arg="$own"
        fi
        look_at "$1" 120 --package redis-cell-core --cargo-arg=--tests
    else
        local package=(--package redis-cell) last=(exact:: nested:: clock::)
        if [[ $1 == ffi/* ]]; then
            package=(--package redis-cell-ffi --test-package redis-cell) last+=(cluster:: failover::)
        fi
        # `cargo test` does not build the module, which no test links. So the tool runs a cargo that builds it first.
        export CARGO=$folder/cargo REDIS_CELL_MODULE=$folder/build-$slot/mutants/libredis_cell.so
        look_at "$1" 40 "${package[@]}" -- --locked --test live -- throttle:: state:: windows:: log:: several:: once:: flows::
        look_at "$1" 75 "${package[@]}" -- --locked --test live
        # Those that are left, beside another module and with clocks that are set back.
        look_at "$1" 300 "${package[@]}" -- --locked --test reliability -- "${last[@]}" --skip valgrind
    fi
}

files=("$@")
if (($# == 0)); then mapfile -t files < <(git ls-files core/src src/calls.rs src/store.rs src/calls src/store); fi
rm -rf "$folder"/{tree-,*.rs}*
mkdir -p "$folder"
for slot in 0 1; do # each of two files at a time has a copy of the tree, newer than what was built before
    mkdir "$folder/tree-$slot"
    git ls-files -z | xargs -0 cp --parents --preserve=mode -t "$folder/tree-$slot"
done
export PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 # no mutant is found by the cases that have found another
if [[ " ${files[*]}" == *\ src/* || ${files[*]} == *ffi/src* ]]; then
    REDIS_CELL_SERVER=$(find_server)
    scripts/build.sh --tests
    export REDIS_CELL_SERVER REDIS_CELL_FAULTY_MODULE=$PWD/target/suite/libredis_cell_faulty.so
    export RUST_TEST_THREADS=$((4 * $(nproc))) # they mostly wait for their servers
    cat >"$folder/cargo" <<'SH'
#!/bin/bash
# Ends the tests when the first one fails.
if [[ $1 != test ]]; then exec cargo "$@"; fi
cargo build --locked --package redis-cell --profile mutants || exit
set -o pipefail
trap 'exit 1' TERM
cargo "$@" | { sed -u '/ \.\.\. FAILED$/q1' || kill 0; }
SH
    chmod +x "$folder/cargo"
fi
two_at_a_time mutants_of "${files[@]}"

found=$(cat "$folder"/*/mutants.out/{caught,previously_caught}.txt 2>/dev/null | sort -u | wc -l)
((found > 0)) || die "no mutant was looked at"
cat "$folder"/*/mutants.out/missed.txt >"$folder/missed.txt"
echo "$found mutants were found or do not compile, $(wc -l <"$folder/missed.txt") were not found"
missed=$(grep -vEf <(grep -E '^[^#]' scripts/mutants.txt) "$folder/missed.txt") || true
[[ ! $missed ]] || die "found by no test, and not in scripts/mutants.txt:"$'\n'"$missed"
