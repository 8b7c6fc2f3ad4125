#!/usr/bin/env bash
# Runs clients of other projects, unmodified, against `specrun serve` on the bundled model.
#
#   tests/clients/run.sh              installs the clients first, in target/clients
#   SERVER=URL tests/clients/run.sh   uses a running server, such as llama-server, in place of ours
#
# Prints what each client reports; the exit code is 1 if one fails or gets a wrong result. Needs cargo,
# python3 and PyPI. PEER_WORK names the folder with llama.cpp's sources, as in tests/peer/build.sh. MTP_BENCH
# names a copy of the community's mtp-bench.py (gist am17an/228edfb84ed082aa88e3865d6fa27090), which no package has.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
work=$target/clients
mkdir -p "$work"

if [[ ! -e $work/done ]] || ! cmp -s tests/clients/requirements.txt "$work/done"; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --requirement tests/clients/requirements.txt
    "$work/venv/bin/pip" install --quiet --no-deps guidellm==0.8.1 llama-benchy==0.4.0
    cp tests/clients/requirements.txt "$work/done"
fi
python=$work/venv/bin/python

own=()
if [[ -z ${SERVER:-} ]]; then
    cargo build --workspace --bins
    [[ -e $work/target.gguf ]] || "$target/debug/specconv" convert models/tiny-qwen35-mtp -o "$work/target.gguf"
    "$target/debug/specrun" serve -m "$work/target.gguf" -c 4096 -np 4 --port 0 --spec-draft-fixed 2>"$work/server.log" &
    server=$!
    trap 'kill $server; wait $server || true' EXIT
    until grep -q listening "$work/server.log"; do
        kill -0 $server || { cat "$work/server.log"; exit 2; }
        sleep 0.1
    done
    SERVER=$(sed -n 's/.*listening on //p' "$work/server.log")
    own=("$target/debug/specrun" "$work/target.gguf")
fi

failed=0
run() {
    echo "== $1"
    shift
    "$@" || { echo "failed: $*"; failed=1; }
}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$PWD/$work/hf OPENAI_API_KEY=none

run "openai-python" "$python" tests/clients/openai_client.py "$SERVER"
run "lm-eval" "$python" tests/clients/lm_eval/run.py "$SERVER" "${own[@]}" 2>"$work/lm_eval.log"

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

# guidellm reads its prompts through torch, for which a stub is enough.
guide() {
    PYTHONPATH=tests/clients/stubs/torch COLUMNS=160 "$work/venv/bin/guidellm" run --disable-progress \
        --backend "kind=openai_http,target=$SERVER,model=target,request_format=/v1/completions" \
        --profile kind=concurrent,streams=2 --constraint kind=max_requests,count=6 \
        --tokenizer kind=huggingface_auto,model=models/tiny-qwen35-mtp \
        --data kind=synthetic_text,prompt_tokens=32,output_tokens=16 \
        --output "kind=json,path=$work/guidellm.json" >"$work/guidellm.log" 2>&1
    sed -n '/Run Summary/,/^$/p; /Request Latency/,/^$/p' "$work/guidellm.log"
    grep -q 'completed .*successful=6 errored=0 incomplete=0' "$work/guidellm.log"
}
run "guidellm" guide

# llama.cpp's speed_bench.py is in its source archive.
sources=${PEER_WORK:-$target/peer}
bench=$(find "$sources" -name speed_bench.py 2>/dev/null | head -n 1 || true)
if [[ -n $bench ]]; then
    run "speed_bench.py" env PYTHONPATH=tests/clients/stubs/datasets "$python" "$bench" \
        --url "$SERVER" --bench qualitative --osl 48 --concurrency 3 --output "$work/speed_bench.json"
else
    echo "speed_bench.py: not found in $sources; tests/peer/build.sh fetches the sources of llama.cpp"
fi

if [[ -n ${MTP_BENCH:-} ]]; then
    run "mtp-bench.py" "$python" "$MTP_BENCH" --url "$SERVER"
else
    echo "mtp-bench.py: MTP_BENCH is not set"
fi
exit $failed
