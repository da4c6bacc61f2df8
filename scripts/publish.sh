#!/usr/bin/env bash
# Prepares everything that is uploaded to publish the clients, in target/publish: the crates as `cargo publish` would
# send them, and the wheel and source distribution of the Python package, built and checked. With --version TAG, only
# checks that the tag and all manifests have the same version.
source "$(dirname "$0")/lib.sh"

version=$(version)
python_version=$(sed -nE 's/^version = "(.*)"$/\1/p' clients/python/pyproject.toml)
[[ $python_version == "$version" ]] || die "clients/python/pyproject.toml has version $python_version, Cargo.toml $version"
if [[ ${1:-} == --version ]]; then
    [[ $2 == "v$version" ]] || die "the tag $2 is not v$version, the version of Cargo.toml"
    exit
fi

need_compiler
folder=$PWD/target/publish
rm -rf "$folder"
mkdir -p "$folder"

# Both together: the client needs the core in the same version, which is in no registry yet.
crates=(--package redis-cell-core --package redis-cell-client)
cargo package --quiet --locked --allow-dirty "${crates[@]}"
cargo publish --quiet --dry-run --no-verify --locked --allow-dirty "${crates[@]}"
for crate in redis-cell-core redis-cell-client; do cp "target/package/$crate-$version.crate" "$folder"; done

uv=$(wheel uv uv)
export UV_CACHE_DIR=$PWD/target/uv
"$uv" build --quiet --build-constraints clients/python/requirements/newest.txt --require-hashes --out-dir "$folder" clients/python
rm -f "$folder/.gitignore"
"$uv" tool run --quiet --from twine==7.0.0 twine check --strict "$folder"/*.whl "$folder"/*.tar.gz

# The licence must be included in every copy, so each archive has it.
for archive in "$folder"/*; do
    case $archive in *.whl) list=(python3 -m zipfile -l "$archive") ;; *) list=(tar -tzf "$archive") ;; esac
    "${list[@]}" | grep 'LICENSE' >/dev/null || die "${archive##*/} has no LICENSE"
done
say "$folder:"
(cd "$folder" && sha256sum ./*)
