#!/usr/bin/env bash
# docker/base.sh SUITE: makes sure that the image debian:SUITE-slim exists. It is pulled, or, where no registry answers,
# made here from Debian's packages and given the very name that the Dockerfiles use, so that they build in either place.
source "$(dirname "$0")/../scripts/lib.sh"

suite=$1
image=debian:$suite-slim
docker image inspect "$image" >/dev/null 2>&1 && exit
timeout 300 docker pull --quiet "$image" 2>/dev/null && exit

say "no registry answers: making $image with debootstrap"
command -v debootstrap >/dev/null || apt_install debootstrap
# Comes with Debian; on Ubuntu without it nothing would be verified.
[[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || apt_install debian-archive-keyring
mkdir -p target
root=$(mktemp -d -p target)
trap 'as_root rm -rf "$root"' EXIT
as_root debootstrap --variant=minbase "$suite" "$root" http://deb.debian.org/debian >"$root.log" ||
    die "debootstrap failed: $(tail -n 5 "$root.log")"
rm "$root.log"
# As in the image of the registry: a package must not start its service while an image is built.
as_root install /dev/stdin "$root/usr/sbin/policy-rc.d" <<<$'#!/bin/sh\nexit 101'
as_root tar -C "$root" --exclude './var/cache/apt/archives/*.deb' --exclude './var/lib/apt/lists/*' -c . |
    docker import - "$image" >/dev/null
