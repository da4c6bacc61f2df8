#!/usr/bin/env bash
# Runs histories of seeds in the simulated server: SEEDS (1,000) of them from SEED on, which is printed and new in each
# run, with STEPS (400) steps each. A history that fails is shrunk and printed. TRACE=1 prints each step of the first
# seed, and each call of the module API. The arguments are files with histories, which are replayed instead.
source "$(dirname "$0")/lib.sh"
scripts/build.sh --tests
seed=${SEED:-$((RANDOM << 15 | RANDOM))}
options=()
if [[ ${TRACE:-} ]]; then options+=(--trace); fi
if (($#)); then
    for file in "$@"; do options+=(--file "$file"); done
else
    say "SEED=$seed"
    options+=(--seeds "$seed" "${SEEDS:-$([[ ${SEED:-} ]] && echo 1 || echo 1000)}" --steps "${STEPS:-400}" --jobs "$(nproc)")
fi
cargo run --quiet --profile suite --locked -p redis-cell-simulator -- "${options[@]}" \
    "${REDIS_CELL_MODULE:-target/suite/libredis_cell.so}"
