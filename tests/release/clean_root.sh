#!/usr/bin/env bash
# Builds the root of a stage of Containerfile without a container engine, and runs the quick start of README.md and the
# demo in it. The root holds the files that the stage copies, the models, and nothing else. Needs root, for chroot.
#
# usage: clean_root.sh FOLDER_OF_PROGRAMS [base|cuda]
#
# base: a static program needs nothing else. For a dynamic one, the script copies the libraries that the loader names and
# prints them.
# cuda: the stage begins with Debian, which the script installs with mmdebstrap. It then adds a CUDA driver, as the NVIDIA
# runtime does, that computes nothing (tests/cuda/driver.c, needs cc), and lists its device.
set -euo pipefail

programs=$(realpath "${1:?folder of specconv and specrun}")
stage=${2:-base}
cd "$(dirname "$0")/../.."
unshare=$(command -v unshare)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir "$root"
chmod 755 "$work" "$root"
if [ "$stage" = cuda ]; then
    release=$(sed -nE 's/^FROM .*debian:([a-z]+)-slim AS cuda$/\1/p' Containerfile)
    mmdebstrap --quiet --variant=minbase "${release:?Debian release of the stage cuda}" "$root"
fi

# Returns the file of this machine for a path of the stage "build".
built() {
    case $1 in
    /src/target/dist/*) echo "$programs/${1##*/}" ;;
    /out/*) echo "$work$1" ;;
    *) echo "$1" ;;
    esac
}

# Performs the steps of a stage. Of "build", only those that prepare /out.
perform() {
    local step rest words source to
    while read -r step rest; do
        case $step,$rest in
        RUN,*" /out/"*) eval "${rest//\/out\//$work/out/}" ;;
        COPY,--from=build\ * | COPY,--from=build-glibc\ *)
            read -ra words <<<"${rest#* }"
            to=$root${words[-1]}
            mkdir -p "${to%/*}"
            for source in "${words[@]:0:${#words[@]}-1}"; do
                source=$(built "$source")
                case $source in
                */) cp -a "$source." "$to" ;;
                *) cp "$source" "$to" ;;
                esac
            done
            ;;
        ENV,*) read -ra variables <<<"$rest" ;;
        USER,*) user=$rest ;;
        WORKDIR,*) folder=$rest ;;
        FROM,* | RUN,* | COPY,* | ARG,* | CMD,*) ;;
        ,* | '#'*) ;;
        *)
            echo "error: Containerfile: $step: expected RUN, COPY, ENV, USER or WORKDIR" >&2
            exit 1
            ;;
        esac
    done < <(sed -n "/^FROM .* AS $1\$/,/^FROM /{/^FROM /!p}" Containerfile)
}
perform build
perform "$stage"
: "${user:?}" "${folder:?}"

if [ "$stage" = base ]; then
    libraries=$(ldd "$programs/specconv" 2>/dev/null | grep -oE '/[^ ]+' || true)
    for library in $libraries; do
        mkdir -p "$root$(dirname "$library")"
        cp "$library" "$root$library"
    done
    printf 'libraries: %s\n' "${libraries:-none, the programs are static}"
    (cd "$root" && find . -type f)
fi
cp -r models "$root$folder/models"

# Runs a program as the container does.
run() {
    printf '\n== %s\n' "$*"
    env -i "${variables[@]}" "$unshare" --root="$root" --wd="$folder" \
        --setuid="${user%:*}" --setgid="${user#*:}" "/usr/local/bin/$1" "${@:2}"
}

# The lines of the quick start that begin with a program; quotes are those of the document.
# shellcheck disable=SC2016
sed -n '/^## Quick start/,/^## /p' README.md | sed -n '/^```sh/,/^```/p' |
    grep -E '^(specconv|specrun) ' | sed 's/ *#.*//' >"$work/commands"
[ "$(wc -l <"$work/commands")" -ge 5 ]
while IFS= read -r line; do
    eval "run $line"
done <"$work/commands"
[ -s "$root$folder/verify.html" ]
run specconv demo
if [ "$stage" = cuda ]; then
    cc -shared -fPIC tests/cuda/driver.c -o "$root/usr/lib/$(uname -m)-linux-gnu/libcuda.so.1"
    run specrun devices | tee "$work/devices"
    grep -q '^cuda:0' "$work/devices"
fi
echo
echo "the quick start runs in a clean root of the stage $stage"
