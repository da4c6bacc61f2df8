#!/usr/bin/env bash
# Tests mutants: single changes of operators, values and branches. The core's own tests must detect mutants of the core,
# and the live suite and two groups of the reliability suite mutants of the module's calls and states, except for those
# in scripts/mutants.txt. This takes many hours. mutants.sh FILE... takes only these files, such as core/src/queue.rs or
# src/store/gcra.rs.
source "$(dirname "$0")/lib.sh"
version=27.1.0

need_compiler
tool=$PWD/target/tools/bin/cargo-mutants
if [[ $("$tool" mutants --version 2>/dev/null) != *" $version" ]]; then
    cargo install --quiet --locked --version "$version" --root target/tools cargo-mutants
fi

# look_at PACKAGE ARGUMENT...: tests the mutants of a package. A mutant whose tests take longer than five minutes counts
# as one that never ends.
look_at() {
    local code=0 out=target/mutants/$1
    mkdir -p "$out"
    # In the copy of the tree, build output is in a separate folder.
    env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=0 \
        "$tool" mutants --package "$1" --output "$out" --colors never --timeout 300 "${@:2}" || code=$?
    # 2 and 3 mean that mutants were missed or never ended. Any other code is a failure of the tool.
    ((code == 0 || code == 2 || code == 3)) || die "cargo mutants: $code"
}

# none_left PACKAGE: fails if a mutant was missed that is not in the list.
none_left() {
    local out=target/mutants/$1/mutants.out found missed
    found=$(cat "$out"/{caught,timeout,previously_caught}.txt 2>/dev/null | sort -u | wc -l)
    ((found > 0)) || die "no mutant was looked at"
    missed=$(grep -vEf <(grep -E '^[^#]' scripts/mutants.txt) "$out/missed.txt") || true
    echo "$1: $found mutants were found, $(wc -l <"$out/missed.txt") were not"
    [[ ! $missed ]] || die "found by no test, and not in scripts/mutants.txt:"$'\n'"$missed"
}

files=("$@")
if (($# == 0)); then files=('core/src/**' src/{calls,store}.rs 'src/calls/**' 'src/store/**'); fi
core=() module=()
for file in "${files[@]}"; do
    if [[ $file == core/* ]]; then core+=(--file "$file"); else module+=(--file "$file"); fi
done
if [[ ${core[*]} ]]; then
    look_at redis-cell-core "${core[@]}" --cargo-arg=--tests
    none_left redis-cell-core
fi
if [[ ${module[*]} ]]; then
    REDIS_CELL_SERVER=$(find_server)
    scripts/build.sh --tests
    # `cargo test` does not build the module, which no test links. So the tool runs a cargo that builds it first, in the
    # copy of the tree that the mutant is in.
    CARGO=$PWD/target/tools/building-cargo
    cat >"$CARGO" <<'SH'
#!/bin/sh
if [ "$1" = test ]; then cargo build --locked --package redis-cell || exit; fi
exec cargo "$@"
SH
    chmod +x "$CARGO"
    export CARGO REDIS_CELL_SERVER REDIS_CELL_MODULE=target/debug/libredis_cell.so
    export REDIS_CELL_FAULTY_MODULE=$PWD/target/release/libredis_cell_faulty.so
    look_at redis-cell "${module[@]}" -- --locked --test live
    # Those that are left, beside another module and with clocks that are set back.
    look_at redis-cell "${module[@]}" --iterate -- --locked --test reliability -- nested:: clock:: --skip valgrind
    none_left redis-cell
fi
