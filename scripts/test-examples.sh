#!/usr/bin/env bash
# Runs the Python examples that have a requirements.txt and tests, with this machine's own server and a plain build.
# They need no container. Records its counts for scripts/test.sh, which runs it.
source "$(dirname "$0")/lib.sh"

# unittest PYTHON FOLDER: runs the tests in the folder, and prints the counts in the format of `cargo test`. Some
# examples need the package redis_cell, which is in no registry and is read from this checkout.
unittest() {
    (
        cd "$2"
        PYTHONPATH=$OLDPWD/clients/python/src:$OLDPWD/examples REDIS_URL=redis://127.0.0.1:$port "$1" -m unittest --verbose
    ) 2>&1 | awk '
        { print; fflush() }
        /^Ran [0-9]+ tests?/ { ran = $2 }
        /^FAILED/ { while (match($0, /(failures|errors)=[0-9]+/)) {
            failed += substr($0, index($0, "=") + 1, RLENGTH)
            $0 = substr($0, RSTART + RLENGTH)
        } }
        END { print "test result: counted. " (ran > failed ? ran - failed : 0) " passed; " failed + 0 " failed" }'
}

use_plain_build
server=$REDIS_CELL_SERVER
start_server
for pins in examples/*/requirements.txt; do
    example=${pins%/*}
    python=$(python_venv "$pins")/bin/python
    suite "$example" unittest "$python" "$example"
done
