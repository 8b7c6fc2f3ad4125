#!/usr/bin/env bash
# Runs clients of other projects, unmodified, against `specrun serve` on the bundled model.
#
#   tests/clients/run.sh              installs the clients first, in target/clients
#   SERVER=URL tests/clients/run.sh   uses a running server, such as llama-server, in place of ours
#
# Prints what each client reports; the exit code is 1 if one fails or gets a wrong result. Needs cargo,
# python3 and PyPI. PEER_WORK names the folder with llama.cpp's sources, as in tests/peer/build.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
work=$target/clients
mkdir -p "$work"

if [[ ! -e $work/done ]] || ! cmp -s tests/clients/requirements.txt "$work/done"; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --requirement tests/clients/requirements.txt
    "$work/venv/bin/pip" install --quiet --no-deps llama-benchy==0.4.0
    cp tests/clients/requirements.txt "$work/done"
fi
python=$work/venv/bin/python

if [[ -z ${SERVER:-} ]]; then
    cargo build --workspace --bins
    [[ -e $work/target.gguf ]] || "$target/debug/specconv" convert models/tiny-qwen35-mtp -o "$work/target.gguf"
    "$target/debug/specrun" serve -m "$work/target.gguf" -c 1024 -np 4 --port 0 --spec-draft-fixed 2>"$work/server.log" &
    server=$!
    trap 'kill $server; wait $server || true' EXIT
    until grep -q listening "$work/server.log"; do
        kill -0 $server || { cat "$work/server.log"; exit 2; }
        sleep 0.1
    done
    SERVER=$(sed -n 's/.*listening on //p' "$work/server.log")
fi

failed=0
run() {
    echo "== $1"
    shift
    "$@" || { echo "failed: $*"; failed=1; }
}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$PWD/$work/hf OPENAI_API_KEY=none

run "openai-python" "$python" tests/clients/openai_client.py "$SERVER"
run "lm-eval" "$python" tests/clients/lm_eval/run.py "$SERVER" 2>"$work/lm_eval.log"

# llama-benchy cuts its prompts from a book, which it downloads.
benchy() {
    mkdir -p "$work/www"
    cat docs/*.md >"$work/www/book.txt"
    "$python" -u -m http.server --bind 127.0.0.1 --directory "$work/www" 0 >"$work/www.log" 2>&1 &
    local www=$! port=""
    while [[ -z $port ]]; do
        sleep 0.1
        port=$(sed -n 's/.* port \([0-9]*\).*/\1/p' "$work/www.log")
    done
    local passed=0
    HOME=$PWD/$work "$work/venv/bin/llama-benchy" --base-url "$SERVER/v1" --model target --tokenizer models/tiny-qwen35-mtp \
        --pp 64 --tg 16 --depth 0 64 --runs 2 --concurrency 1 2 --skip-coherence \
        --book-url "http://127.0.0.1:$port/book.txt" >"$work/benchy.log" 2>&1 || passed=1
    kill $www
    grep '^|' "$work/benchy.log" || passed=1
    return $passed
}
run "llama-benchy" benchy

# llama.cpp's speed_bench.py is in its source archive.
sources=${PEER_WORK:-$target/peer}
bench=$(find "$sources" -name speed_bench.py 2>/dev/null | head -n 1 || true)
if [[ -n $bench ]]; then
    run "speed_bench.py" env PYTHONPATH=tests/clients/stub "$python" "$bench" \
        --url "$SERVER" --bench qualitative --osl 48 --concurrency 3 --output "$work/speed_bench.json"
else
    echo "speed_bench.py: not found in $sources; tests/peer/build.sh fetches the sources of llama.cpp"
fi
exit $failed
