#!/usr/bin/env bash
# Everything that publishing the clients takes but the upload: the crates that `cargo publish` would send, and the wheel
# and the source distribution of the Python package, built and checked, in target/publish. With --version TAG it only
# makes sure that the tag and all manifests have one version.
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

# Both at once: the client needs the core of the same version, which is on no registry yet.
crates=(--package redis-cell-core --package redis-cell-client)
cargo package --quiet --locked --allow-dirty "${crates[@]}"
cargo publish --quiet --dry-run --no-verify --locked --allow-dirty "${crates[@]}"
for crate in redis-cell-core redis-cell-client; do cp "target/package/$crate-$version.crate" "$folder"; done

uv=$(wheel uv uv)
export UV_CACHE_DIR=$PWD/target/uv
"$uv" build --quiet --build-constraints clients/python/requirements/newest.txt --require-hashes --out-dir "$folder" clients/python
rm -f "$folder/.gitignore"
"$uv" tool run --quiet --from twine==7.0.0 twine check --strict "$folder"/*.whl "$folder"/*.tar.gz

# A licence obliges to pass it on, so each archive has it.
for archive in "$folder"/*; do
    case $archive in *.whl) list=(python3 -m zipfile -l "$archive") ;; *) list=(tar -tzf "$archive") ;; esac
    "${list[@]}" | grep 'LICENSE' >/dev/null || die "${archive##*/} has no LICENSE"
done
say "$folder:"
(cd "$folder" && sha256sum ./*)
