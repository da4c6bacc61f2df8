#!/usr/bin/env bash
# Checks spelling, the width of comments and pages, and the phrases of scripts/phrases.tsv in all text for readers.
source "$(dirname "$0")/lib.sh"
export LC_ALL=C.UTF-8 # widths are counted in characters

# files NAME...: prints the files of this checkout with these names.
files() {
    local names=()
    for name in "$@"; do names+=(-o -name "$name"); done
    find . \( -name target -o -name venv -o -name .git -o -name __pycache__ \) -prune -o -type f \( "${names[@]:1}" \) -print | sort
}

# wide COLUMNS FILTER FILE...: prints lines that are too long. FILTER, a sed script, first removes text without a limit.
wide() {
    local columns=$1 filter=$2 file found=1
    shift 2
    for file in "$@"; do
        if sed -E "$filter" "$file" | grep -nE "^.{$((columns + 1)),}" | sed "s|^|$file:|"; then found=0; fi
    done
    return "$found"
}

# found WHAT COMMAND...: records a failure if the command finds something.
failed=
found() {
    local what=$1
    shift
    if "$@" >&2; then
        say "$what"
        failed=yes
    fi
}

typos=$(command -v typos) || typos=$(wheel typos typos)
"$typos" --format brief >&2 || failed=yes

mapfile -t rust < <(files '*.rs')
mapfile -t pages < <(files '*.md')
mapfile -t scripts < <(files '*.sh' 'Dockerfile*' '*.toml' Makefile run)
# Excludes tables, code, the addresses of links in pages, and Chinese.
mapfile -t wrapped < <(printf '%s\n' "${pages[@]}" | grep -v zh-CN)
found "lines wider than 120 columns" wide 120 '/^ *\x60{3}/,/^ *\x60{3}/s/.*//; /^ *\|/s/.*//; s/\]\([^)]*\)/]/g; s/^<.*>$//' \
    "${wrapped[@]}"
found "comments wider than 110 columns" wide 110 '/^ *\/\//!s/.*//' "${rust[@]}"
found "comments wider than 120 columns" wide 120 '/^ *#/!s/.*//' "${scripts[@]}"

# other_rust FILE...: prints lines that name another version of Rust than the manifest.
other_rust() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    grep -nE '\bRust\b(\]\([^)]*\))? 1\.[0-9]' "$@" | grep -vE "\\bRust\\b(\]\([^)]*\))? ${version//./\\.}\\b"
}
found "another version of Rust than rust-version in Cargo.toml" other_rust "${pages[@]}"

# A browser shows the end of a line as a space, which Chinese does not have.
found "lines of Chinese that end between two characters" grep -Pzo \
    '[\p{Han}，。；：、）」](?=\n[\p{Han}（「])' README.zh-CN.md docs/choosing.zh-CN.md

# phrases FILE...: prints the phrases of scripts/phrases.tsv in the files, also those that cross the end of a line.
phrases() {
    local phrase better seen=1 space='\s+(?:(?://[/!]?|#)\s+)?'
    while IFS=$'\t' read -r phrase better <&3; do
        if grep -PzoHiI "${phrase// /$space}" -- "$@" | tr '\n\0' ' \n'; then
            seen=0
            echo "    better: $better"
        fi
    done 3< <(grep -v '^#' scripts/phrases.tsv)
    return "$seen"
}
mapfile -t others < <(files '*.py' '*.lua' '*.c' '*.js' '*.ts')
found "phrases of scripts/phrases.tsv" phrases "${rust[@]}" "${pages[@]}" "${scripts[@]}" "${others[@]}"

# The names of functions, above all of tests, as sentences.
mapfile -t python < <(files '*.py')
sentences=$(mktemp)
trap 'rm -f "$sentences"' EXIT
grep -nE '\b(fn|def) [a-z0-9_]+' "${rust[@]}" "${python[@]}" |
    sed -E 's/^([^:]+:[0-9]+):.*\b(fn|def) ([a-z0-9_]+).*/\1:\3/; s/^([^:]+):([0-9]+):/\1:\2: /' | tr _ ' ' >"$sentences"
found "names with phrases of scripts/phrases.tsv" phrases "$sentences"

[[ ! $failed ]]
