#!/usr/bin/env bash
# Builds the portable module for this machine in another folder, from the last commit and with nothing that was built
# here, and compares it with the one in target/dist, byte for byte. Whoever has the commit can so check a release.
source "$(dirname "$0")/lib.sh"

[[ ! $(git status --porcelain) ]] || die "commit first: the other folder has only what is committed"
scripts/release.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git archive HEAD | tar -x -C "$folder"
# What is pinned by hash needs no second download.
mkdir "$folder/target"
for fetched in "$PWD"/target/wheels "$PWD"/target/rust-*; do ln -s "$fetched" "$folder/target"; done
"$folder/scripts/release.sh"
for file in libredis_cell.so libredis_cell.so.debug; do
    cmp "target/dist/$file" "$folder/target/dist/$file" || die "$file differs between two folders"
done
say "the same file: $(sha256sum target/dist/libredis_cell.so)"
