#!/bin/sh
# Measures the acceptance of heads of three types on bodies of six types, on the bundled family: the table of
# docs/heads.md. SPECCONV and SPECRUN name the programs (default: those of target/release).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
specconv=${SPECCONV:-$root/target/release/specconv}
specrun=${SPECRUN:-$root/target/release/specrun}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

"$specconv" convert "$root/models/tiny-qwen35-mtp" --no-mtp -o body-BF16.gguf >&2
"$specconv" convert "$root/models/tiny-qwen35-mtp" --mtp -o mtp.gguf >&2
for body in ${BODIES:-BF16 Q8_0 Q6_K Q5_K_M Q4_K_M Q2_K}; do
    [ "$body" = BF16 ] || "$specconv" quantize body-BF16.gguf "body-$body.gguf" "$body" >&2
    for head in ${HEADS:-keep Q8_0 Q4_K}; do
        "$specconv" graft-mtp --target "body-$body.gguf" --mtp mtp.gguf --mtp-type "$head" \
            -o model.gguf >&2
        "$specrun" verify -m model.gguf --prompts "$root/models/prompts.jsonl" \
            --spec-type draft-mtp --json > verify.json
        python3 - "$body" "$head" <<'PYTHON'
import json, sys
runs = json.load(open("verify.json"))["runs"]
drafted = sum(run["counters"]["n_drafted"] for run in runs)
accepted = sum(run["counters"]["n_accepted"] for run in runs)
print(f"| {sys.argv[1]} | {sys.argv[2]} | {drafted} | {accepted} | {accepted / drafted:.3f} |")
PYTHON
    done
done
