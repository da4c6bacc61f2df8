#!/usr/bin/env bash
# Plants the defects of verify/simulator/defects.txt in a copy of the module, and counts the seeds until the simulator
# finds each: the table in docs/verification.md. They are planted in one build, which has the one that REDIS_CELL_DEFECT
# names. SEEDS (2,000) are tried at most. With arguments, only the defects of these names.
source "$(dirname "$0")/lib.sh"
need_compiler
simulate=target/suite/simulate
cargo build --profile suite --locked -p redis-cell-simulator

copy=target/defects
rm -rf "$copy/core" "$copy/src" "$copy/ffi"
mkdir -p "$copy"
git archive HEAD | tar -x -C "$copy" -m
names=$(python3 scripts/plant-defects.py verify/simulator/defects.txt "$copy")
(
    cd "$copy"
    CARGO_TARGET_DIR=$PWD/target RUSTFLAGS="--cap-lints warn" cargo build --quiet --profile suite --locked --lib -p redis-cell
)

if (($#)); then names=$*; fi
for name in $names; do
    found=$(REDIS_CELL_DEFECT=$name "$simulate" --seeds 1 "${SEEDS:-2000}" --first \
        "$PWD/$copy/target/suite/libredis_cell.so" || true)
    seed=$(sed -n 's/^seed \([0-9]*\): \([a-z]*\),.*/\2\t\1/p' <<<"$found" | head -1)
    steps=$(sed -n 's/^\([0-9]*\) steps:$/\1/p' <<<"$found" | head -1)
    printf '%s\t%s\t%s\n' "$name" "${seed:-not found	-}" "${steps:--}"
done
