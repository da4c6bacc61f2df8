#!/usr/bin/env bash
# Fuzzes for as long as you like: the core under libFuzzer, REDIS_CELL_FUZZ_SECONDS (60) per target, and then a live
# server, REDIS_CELL_FUZZ_COMMANDS (1,000,000). fuzz.sh TARGET... runs only these targets, without the server. Prints
# the seed, which is REDIS_CELL_FUZZ_SEED or new in each run. Keeps the inputs that add coverage in target/fuzz, for
# other runs.
source "$(dirname "$0")/lib.sh"
need_compiler
command -v c++ >/dev/null || apt_install g++ # libFuzzer is compiled from source

export REDIS_CELL_FUZZ_SEED=${REDIS_CELL_FUZZ_SEED:-$((RANDOM << 15 | RANDOM))}
say "REDIS_CELL_FUZZ_SEED=$REDIS_CELL_FUZZ_SEED"

# Replaces cargo-fuzz, which needs a nightly compiler. Stable Rust has LLVM's coverage passes, but no AddressSanitizer,
# which the core does not need: it has no unsafe code. With --target, build scripts are not instrumented.
host=$(rustc -vV | sed -n 's/^host: //p')
pass=(-Cpasses=sancov-module)
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    pass+=("-Cllvm-args=-sanitizer-coverage-$option")
done
RUSTFLAGS="${pass[*]} --cfg fuzzing -Ccodegen-units=1" \
    cargo build --release --locked --manifest-path verify/fuzz/Cargo.toml --target "$host"

targets=("$@")
if (($# == 0)); then targets=(arguments states decisions queues); fi
for target in "${targets[@]}"; do
    say "libFuzzer: $target"
    mkdir -p "target/fuzz/$target"
    "target/$host/release/$target" -seed="$REDIS_CELL_FUZZ_SEED" -max_len=400 -timeout=10 -print_final_stats=1 \
        -max_total_time="${REDIS_CELL_FUZZ_SECONDS:-60}" -artifact_prefix="target/fuzz/$target-" "target/fuzz/$target" \
        2>&1 | grep -vE '^#[0-9]+.*(NEW|REDUCE|pulse|RELOAD)|NEW_FUNC|# Uses: |dictionary'
done

if (($#)); then exit; fi
say "a live server"
scripts/build.sh
REDIS_CELL_SERVER=$(find_server) REDIS_CELL_FUZZ_COMMANDS=${REDIS_CELL_FUZZ_COMMANDS:-1000000} \
    cargo test --release --locked -p redis-cell-tests --test reliability -- --nocapture hostile::no_random
