#!/usr/bin/env bash
# Runs the quick start of README.md in a root that holds nothing but the two programs, the models and the
# certificates: the last stage of Containerfile. Needs root, for chroot.
#
# usage: clean_root.sh FOLDER_OF_PROGRAMS
#
# A static program needs nothing else. For a dynamic one, the script copies the libraries that the loader names and
# prints them.
set -euo pipefail

programs=$(realpath "${1:?folder of specconv and specrun}")
cd "$(dirname "$0")/../.."
unshare=$(command -v unshare)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

mkdir -p "$root/usr/local/bin" "$root/data" "$root/tmp" "$root/etc/ssl/certs"
chmod 755 "$root"
chmod 1777 "$root/tmp"
cp "$programs/specconv" "$programs/specrun" "$root/usr/local/bin/"
cp -r models "$root/data/models"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
libraries=$(ldd "$programs/specconv" 2>/dev/null | grep -oE '/[^ ]+' || true)
for library in $libraries; do
    mkdir -p "$root$(dirname "$library")"
    cp "$library" "$root$library"
done
printf 'libraries: %s\n' "${libraries:-none, the programs are static}"
chown -R 10001:10001 "$root/data"

# The lines of the quick start that begin with a program; quotes are those of the document.
sed -n '/^## Quick start/,/^## /p' README.md | sed -n '/^```sh/,/^```/p' |
    grep -E '^(specconv|specrun) ' | sed 's/ *#.*//' >"$root/commands"
[ "$(wc -l <"$root/commands")" -ge 5 ]
while IFS= read -r line; do
    printf '\n== %s\n' "$line"
    eval "set -- $line"
    env -i PATH=/usr/local/bin "$unshare" --root="$root" --wd=/data \
        --setuid=10001 --setgid=10001 "/usr/local/bin/$1" "${@:2}"
done <"$root/commands"
[ -s "$root/data/verify.html" ]
echo
echo "the quick start runs in a clean root"
