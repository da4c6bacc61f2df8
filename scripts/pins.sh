#!/usr/bin/env bash
# Writes clients/python/requirements/*.txt: a line for every package that a file .in needs, with the hashes of its files
# for Linux on the processors that the tests run on. Keeps the versions of the present files, or with --upgrade takes
# the newest.
source "$(dirname "$0")/lib.sh"

uv=$(wheel uv uv)
export UV_CACHE_DIR=$PWD/target/uv
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cd clients/python/requirements

# resolve NAME KEPT: prints the packages of NAME.in. Takes the versions in the text KEPT.
resolve() {
    local machine of=()
    for machine in x86_64 aarch64; do
        of+=("\"sys_platform == 'linux' and platform_machine == '$machine' and implementation_name == 'cpython'\"")
    done
    cat >"$folder/pyproject.toml" <<END
[project]
name = "pins"
version = "0"
requires-python = ">=3.11"
dependencies = [$(grep -v '^#' "$1.in" | sed 's/.*/"&",/')]
[tool.uv]
environments = [${of[0]}, ${of[1]}]
constraint-dependencies = [$(sed -n '/==/s/\(.*\)/"\1",/p' <<<"$2")]
END
    rm -f "$folder/uv.lock"
    "$uv" lock --quiet --project "$folder"
    # The tests run nowhere else, so no line says so again.
    "$uv" export --quiet --frozen --project "$folder" --no-header --no-annotate --no-emit-project \
        --format requirements-txt | sed -E "s/( ;| and) implementation_name == 'cpython'.* \\\\$/ \\\\/" |
        sed -z 's/ \\\n    --hash/ --hash/g'
}

# versions: the lines on standard input without their hashes.
versions() { sed 's/ --hash.*//'; }

for name in newest oldest litellm; do
    kept=
    if [[ ${1:-} != --upgrade ]]; then kept=$(versions <"$name.txt"); fi
    if [[ $name == litellm ]]; then
        # It is installed above newest.txt: only what that lacks, or has in another version.
        others=$(grep -oE '^[^=]+==' <<<"$kept" || true)
        kept+=$'\n'$(grep -vF "${others:-==}" newest.txt | versions)
    fi
    resolve "$name" "$kept" >"$folder/new"
    if [[ $name == litellm ]]; then
        grep -vxFf newest.txt "$folder/new" >"$name.txt"
    else
        mv "$folder/new" "$name.txt"
    fi
done
