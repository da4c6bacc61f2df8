#!/usr/bin/env bash
# Assembles the function library from the files of functions/, in the order of their names, as
# target/functions/redis_cell.lua. Prints the path of this file.
source "$(dirname "$0")/lib.sh"
version=$(version)
library=$PWD/target/functions/redis_cell.lua
mkdir -p "${library%/*}"
new=$(mktemp -p "${library%/*}")
cat functions/*.lua | sed "s/@VERSION@/$version/" >"$new"
chmod 644 "$new"
mv "$new" "$library" # atomically, because several tests may read it
echo "$library"
