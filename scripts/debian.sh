#!/usr/bin/env bash
# scripts/debian.sh SUITES ARCHITECTURE FOLDER PACKAGE...: unpacks Debian packages with all their dependencies into
# FOLDER, if it does not exist yet. PACKAGE/ with a slash at its end is unpacked without dependencies, and SOURCE.dsc is
# the source of a package. With several suites, such as sid,experimental, the packages come from the last one, and their
# dependencies from the first one, unless only the last one has them. Nothing is installed: apt uses its own folder
# below target/, and checks the signatures of the archive.
source "$(dirname "$0")/lib.sh"

suites=$1 architecture=$2 folder=$3
shift 3
if [[ -d $folder ]]; then exit; fi

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -e $keyring ]] || apt_install debian-archive-keyring # comes with Debian, not with Ubuntu
state=$PWD/target/apt/$suites-$architecture
mkdir -p "$state"/{lists/partial,cache/archives/partial,empty}
: >"$state/status"
repositories=()
for suite in ${suites//,/ }; do
    repositories+=("debian $suite")
    case $suite in sid | experimental) ;; *) repositories+=("debian-security $suite-security") ;; esac
done
release=
if [[ $suites == *,* ]]; then release=/$suite; fi
for repository in "${repositories[@]}"; do
    echo "deb [signed-by=$keyring] http://deb.debian.org/$repository main"
    echo "deb-src [signed-by=$keyring] http://deb.debian.org/$repository main"
done >"$state/sources.list"
command -v apt-get >/dev/null || die "no apt-get here: this needs Debian or a descendant"
command -v dpkg-source >/dev/null || apt_install dpkg-dev
apt() {
    apt-get -qq -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts="$state/empty" \
        -o Dir::Etc::Parts="$state/empty" -o Dir::Etc::Preferences= -o Dir::Etc::PreferencesParts="$state/empty" \
        -o Dir::State::Lists="$state/lists" -o Dir::State::Status="$state/status" \
        -o Dir::State::extended_states="$state/extended" -o Dir::Cache="$state/cache" \
        -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o APT::Sandbox::User= \
        -o Acquire::Check-Valid-Until=false -o Debug::NoLocking=true "$@" >&2
}

say "unpacking $* of Debian $suites, $architecture"
apt update
rm -rf "$folder.part" "$state/cache/archives"/*.deb
mkdir -p "$folder.part"
for package in "$@"; do
    case $package in
    */) (cd "$state/cache/archives" && apt download "${package%/}") ;;
    *.dsc) (cd "$folder.part" && apt source --only-source "${package%.dsc}") ;;
    *) apt install --download-only --no-install-recommends "$package$release" ;;
    esac
done
for package in "$state/cache/archives"/*.deb; do
    if [[ -e $package ]]; then dpkg-deb --extract "$package" "$folder.part"; fi
done
rm -f "$state/cache/archives"/*.deb
# Since trixie these are links, and no package that is unpacked here contains them.
for link in bin lib sbin; do
    if [[ -d $folder.part/usr/$link && ! -e $folder.part/$link ]]; then ln -s "usr/$link" "$folder.part/$link"; fi
done
mv "$folder.part" "$folder"
