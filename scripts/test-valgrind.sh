#!/usr/bin/env bash
# Runs the whole live suite while valgrind checks every memory access of every server. It takes a quarter of an hour on
# an idle machine, so it is not part of `make test`, which runs the fuzzer under valgrind. Arguments after the name
# choose tests, as for `cargo test`.
#
# Only valgrind decides whether it passes, because a server that is thirty times slower fails tests that count
# milliseconds. Failed tests run again, one at a time, so that the calls at their ends are also checked. Tests that fail
# again are listed.
source "$(dirname "$0")/lib.sh"
command -v valgrind >/dev/null || apt_install valgrind

use_plain_build
server=$REDIS_CELL_SERVER
dir=$(mktemp -d -p target)
trap 'rm -rf "$dir"' EXIT
# A server that only prints its version, or runs under another name, is not checked.
cat >"$dir/redis-server" <<END
#!/bin/sh
case \$1 in --version) exec $(command -v "$server") --version ;; esac
exec valgrind --log-file=$PWD/$dir/%p.log --keep-debuginfo=yes --soname-synonyms='somalloc=*jemalloc*' \\
    $(command -v "$server") "\$@" --rdbcompression no
END
chmod +x "$dir/redis-server"

export REDIS_CELL_SERVER=$PWD/$dir/redis-server

# live NAME ARGUMENT...: runs tests, and puts the names of the failed ones into the array failed.
live() {
    cargo test --locked -p redis-cell-tests --test live -- "${@:2}" | tee "$dir/$1.out" || true
    grep -q '^test result:' "$dir/$1.out" || die "the suite did not get to its end"
    mapfile -t failed < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$dir/$1.out")
}

live together --test-threads 4 "$@"
if ((${#failed[@]})); then
    say "again, one at a time: ${failed[*]}"
    live alone --exact --test-threads 1 "${failed[@]}"
fi

logs=("$dir"/*.log)
say "${#logs[@]} servers checked"
if ((${#failed[@]})); then say "not checked to their ends, because they count milliseconds: ${failed[*]}"; fi
if errors=$(grep -l -E '(Invalid|uninitialised|Mismatched|overlap|fatal)' "${logs[@]}"); then
    xargs cat <<<"$errors"
    die "valgrind found errors"
fi
say "no errors"
