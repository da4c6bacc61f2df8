#!/usr/bin/env bash
# docker/alpine.sh: makes sure that the image redis-cell-test:alpine-base exists, a stand-in for alpine:3 from what
# Debian has, so that docker/Dockerfile.alpine can be tried where no registry has Alpine: BusyBox, musl's libc, Alpine's
# group 999, and scripts in place of `apk`, `addgroup` and `adduser`. That `apk` adds a Redis for musl. The image has a
# name of its own, because nobody should ship it.
source "$(dirname "$0")/../scripts/lib.sh"

image="redis-cell-test:alpine-base"
docker image inspect "$image" >/dev/null 2>&1 && exit

platform=$(uname -m)-musl
redis=$(dirname "$(scripts/platform-server.sh "$platform")")
scripts/debian.sh bookworm "$(dpkg --print-architecture)" "target/roots/busybox" busybox-static/

say "building $image"
mkdir -p target
root=$(mktemp -d -p target)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
mkdir -p "$root"/{bin,sbin,etc,lib,usr/bin,usr/sbin,usr/lib,proc,sys,dev,root,opt/redis}
mkdir -m 1777 "$root/tmp"
cp target/roots/busybox/bin/busybox "$root/bin"
for applet in $("$root/bin/busybox" --list); do
    if [[ $applet != busybox ]]; then ln -s busybox "$root/bin/$applet"; fi
done
cp "$redis/ld-musl.so.1" "$root/lib/ld-musl-${platform%-musl}.so.1"
for program in server cli; do
    cp "$redis/redis-$program.musl" "$root/opt/redis/redis-$program"
done
echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
printf '%s\n' root:x:0: ping:x:999: >"$root/etc/group"
install /dev/stdin "$root/sbin/apk" <<'APK'
#!/bin/sh -e
[ "$*" = "add --no-cache redis" ]
cp /opt/redis/* /usr/bin
APK
# Debian's BusyBox has no such applets. Like Alpine's, these fail for a number that is taken.
install /dev/stdin "$root/usr/sbin/addgroup" <<'ADDGROUP'
#!/bin/sh -e
[ "$1 $2" = "-S -g" ]
if grep -q ":$3:" /etc/group; then exit 1; fi
echo "$4:x:$3:" >>/etc/group
ADDGROUP
install /dev/stdin "$root/usr/sbin/adduser" <<'ADDUSER'
#!/bin/sh -e
[ "$1 $2 $3 $4 $6 $8" = "-S -D -H -u -G -h" ]
if grep -q "^[^:]*:x:$5:" /etc/passwd; then exit 1; fi
gid=$(sed -n "s/^$7:x:\([0-9]*\):.*/\1/p" /etc/group)
echo "${10}:x:$5:$gid::$9:/sbin/nologin" >>/etc/passwd
ADDUSER
tar -C "$root" --owner 0 --group 0 -c . | docker import --change 'CMD ["/bin/sh"]' - "$image" >/dev/null
