#!/usr/bin/env bash
# Hooks of .pre-commit-hooks.yaml.
#
# usage: pre-commit.sh gguf|checkpoint FILE..
set -euo pipefail

kind=$1
shift
failed=0
case $kind in
gguf)
    for file; do
        specconv inspect "$file" >/dev/null || failed=1
    done
    ;;
checkpoint)
    while IFS= read -r folder; do
        # A folder with only a tokenizer is not a checkpoint.
        [ ! -e "$folder/config.json" ] ||
            specconv convert "$folder" --dry-run --quiet >/dev/null || failed=1
    done < <(for file; do dirname "$file"; done | sort -u)
    ;;
*)
    echo "error: $kind: expected gguf or checkpoint" >&2
    exit 2
    ;;
esac
exit $failed
