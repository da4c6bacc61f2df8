#!/usr/bin/env bash
# The live suite with every access to memory of every server checked by valgrind. It takes a quarter of an hour, so it
# is no part of `make test`, which has the fuzzer under valgrind. Words behind the name choose tests, as `cargo test`
# does. The verdict is valgrind's alone: a server that is thirty times slower is late for the tests that count
# milliseconds.
source "$(dirname "$0")/lib.sh"
command -v valgrind >/dev/null || apt_install valgrind

scripts/build.sh --tests
server=$(find_server)
dir=$(mktemp -d -p target)
trap 'rm -rf "$dir"' EXIT
# A server that is asked for its version, or called by another name, is none to be checked.
cat >"$dir/redis-server" <<END
#!/bin/sh
case \$1 in --version) exec $(command -v "$server") --version ;; esac
exec valgrind --log-file=$PWD/$dir/%p.log --keep-debuginfo=yes --soname-synonyms='somalloc=*jemalloc*' \\
    $(command -v "$server") "\$@" --rdbcompression no
END
chmod +x "$dir/redis-server"

REDIS_CELL_SERVER=$PWD/$dir/redis-server \
    REDIS_CELL_MODULE=$PWD/target/release/libredis_cell.so \
    REDIS_CELL_FAULTY_MODULE=$PWD/target/release/libredis_cell_faulty.so \
    cargo test --release --locked --test live -- --test-threads 4 "$@" || say "some tests failed, see above: expected of those about time"

logs=("$dir"/*.log)
say "${#logs[@]} servers checked"
if errors=$(grep -l -E '(Invalid|uninitialised|Mismatched|overlap|fatal)' "${logs[@]}"); then
    xargs cat <<<"$errors"
    die "valgrind found errors"
fi
say "no errors"
