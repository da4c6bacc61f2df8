#!/usr/bin/env bash
# scripts/package.sh [FOLDER]: builds the packages of a release in target/dist or FOLDER, from the modules of
# scripts/release.sh in target/dist/linux-PLATFORM: a tarball for each, a Debian package for each with glibc, and all
# checksums. The same modules and SOURCE_DATE_EPOCH give identical packages, byte for byte.
source "$(dirname "$0")/lib.sh"
command -v dpkg-deb >/dev/null || apt_install dpkg

dist=$PWD/target/dist
if (($#)); then
    mkdir -p "$1"
    cp -r "$dist"/libredis_cell.so* "$dist"/linux-* "$1"
    dist=$(realpath "$1")
fi
version=$(version)
# The time in the packages: the last commit's, or in a tree without git the time of the last change to the changelog.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat --format=%Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

rm -f "$dist"/*.tar.gz "$dist"/*.deb "$dist"/*.json
work=$(mktemp -d -p target)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
umask 022

# crates: prints name, version and licence of each crate that is linked into the module. They are the same on every
# platform.
crates() {
    cargo tree --locked --package redis-cell --edges normal,no-proc-macro --target x86_64-unknown-linux-gnu \
        --prefix none --no-dedupe --format '{p} {l}' | sort -u | grep -v '^redis-cell'
}

# sbom: prints a list of what the module contains, as CycloneDX, for scanners of vulnerabilities and licences.
sbom() {
    printf '{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,\n'
    printf ' "metadata": {"component": {"type": "library", "name": "redis-cell", "version": "%s"}},\n' "$version"
    printf ' "components": [\n'
    crates | while read -r name crate_version licence; do
        printf '  {"type": "library", "name": "%s", "version": "%s", "purl": "pkg:cargo/%s@%s",\n' \
            "$name" "${crate_version#v}" "$name" "${crate_version#v}"
        printf '   "hashes": [{"alg": "SHA-256", "content": "%s"}],\n' \
            "$(grep -A3 "^name = \"$name\"" Cargo.lock | grep -A2 "\"${crate_version#v}\"" | sed -n 's/^checksum = "\(.*\)"/\1/p')"
        printf '   "licenses": [{"expression": "%s"}]},\n' "${licence//\// OR }"
    done
    printf '  {"type": "library", "name": "rust-std", "version": "%s", "licenses": [{"expression": "MIT OR Apache-2.0"}]}]}\n' \
        "$(named_compiler | cut -d ' ' -f 1)"
}

# third_party: prints the licences of the crates that are linked into the module, from the sources used to build it. If
# there is a choice of licences, it is the MIT licence.
third_party() {
    local name crate_version licence source text
    echo "Linked into libredis_cell.so, beside the standard library of Rust (MIT, copyright The Rust Project Contributors):"
    crates | while read -r name crate_version licence; do
        source=$(compgen -G "${CARGO_HOME:-$HOME/.cargo}/registry/src/*/$name-${crate_version#v}" | head -n 1)
        text=$(find "$source" -maxdepth 1 -iname 'LICENSE*' | sort | awk '/MIT/ { mit = $0 } END { print mit ? mit : $0 }')
        printf '\n%s\n%s %s: %s\n\n' "$(printf '=%.0s' {1..80})" "$name" "${crate_version#v}" "$licence"
        if [[ $text ]]; then cat "$text"; fi
    done
}
third_party >"$work/THIRD-PARTY"
sbom >"$work/sbom.cdx.json"
python3 -m json.tool "$work/sbom.cdx.json" /dev/null || die "the list of components is no JSON"
install -m 644 "$work/sbom.cdx.json" "$dist/redis-cell-$version.cdx.json"

library=$(scripts/functions.sh)

# documents FOLDER: copies the README, everything that it links to, and the function library as one file.
documents() {
    tar -c --exclude __pycache__ --exclude venv README*.md SECURITY.md docs examples | tar -x -C "$1"
    install -D "$library" "$1/functions/redis_cell.lua"
    chmod -R u=rwX,go=rX "$1"
}

deb_version=${version/-/'~'}-1 # ~: 1.1.0-rc.1 comes before 1.1.0
maintainer="${DEBFULLNAME:-The redis-cell developers} <${DEBEMAIL:-redis-cell@example.org}>"

# tarball PLATFORM
tarball() {
    local name=redis-cell-$version-linux-$1
    mkdir "$work/$name"
    documents "$work/$name"
    cp CHANGELOG.md LICENSE "$work/THIRD-PARTY" "$work/sbom.cdx.json" packaging/redis-cell.conf "$dist/linux-$1/libredis_cell.so" "$work/$name"
    (cd "$work/$name" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum) >"$work/SHA256SUMS"
    mv "$work/SHA256SUMS" "$work/$name"
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -c "$name" |
        gzip -9n >"$dist/$name.tar.gz"
}

# debian_package PLATFORM: builds a Debian package, which is simple enough for the tools in every Debian. debhelper
# depends on the packages of a compiler, and cargo-deb would compile more code than the module has.
debian_package() {
    local module=$dist/linux-$1/libredis_cell.so architecture root=$work/deb-$1
    architecture=$(case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; *) echo "$1" ;; esac)
    local doc=$root/usr/share/doc/redis-cell
    install -D "$module" "$root/usr/lib/redis/modules/libredis_cell.so"
    mkdir -p "$root/usr/lib/valkey/modules" "$doc/examples" "$root/DEBIAN"
    ln -s ../../redis/modules/libredis_cell.so "$root/usr/lib/valkey/modules/libredis_cell.so"
    install -D -m 644 packaging/debian/lintian-overrides "$root/usr/share/lintian/overrides/redis-cell"
    install -m 644 packaging/redis-cell.conf "$doc/examples"
    documents "$doc"
    cp "$work/THIRD-PARTY" "$work/sbom.cdx.json" "$doc"
    cp CHANGELOG.md "$doc/changelog"
    cat >"$doc/changelog.Debian" <<END
redis-cell ($deb_version) unstable; urgency=medium

  * Version $version: see changelog.gz.

 -- $maintainer  $(date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")
END
    gzip -9n "$doc/changelog" "$doc/changelog.Debian" "$doc/THIRD-PARTY"
    sed -e "/@COPYRIGHT@/{s/.*/$(grep '^Copyright' LICENSE | sed 's/ (c)/:/')/}" \
        -e '/@LICENSE@/{r '<(sed -e '1,/^Copyright/d' LICENSE | sed -e 1d -e 's/^/ /' -e 's/^ $/ ./') -e 'd}' \
        packaging/debian/copyright >"$doc/copyright"
    (cd "$root" && find usr -type f | LC_ALL=C sort | xargs md5sum) >"$root/DEBIAN/md5sums"
    install packaging/debian/postinst packaging/debian/prerm "$root/DEBIAN"
    sed -e "s/@VERSION@/$deb_version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@MAINTAINER@/$maintainer/" \
        -e "s/@SIZE@/$(du -sk --apparent-size "$root/usr" | cut -f 1)/" -e "s/@GLIBC@/$(newest_glibc "$module")/" \
        packaging/debian/control >"$root/DEBIAN/control"
    find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/redis-cell_${deb_version}_$architecture.deb" >/dev/null
}

for module in "$dist"/linux-*/libredis_cell.so; do
    platform=$(basename "${module%/*}")
    tarball "${platform#linux-}"
    case $platform in *-musl) ;; *) debian_package "${platform#linux-}" ;; esac
done

cd "$dist"
sha256sum libredis_cell.so* linux-*/* ./*.json ./*.tar.gz ./*.deb | sed 's, \./, ,' >SHA256SUMS
say "$dist:"
cat SHA256SUMS
