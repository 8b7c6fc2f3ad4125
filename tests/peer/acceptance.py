"""Compares acceptance on the families of models/ with llama.cpp's.

    python3 acceptance.py PEER_BIN OUR_BIN [TYPE ...]

PEER_BIN is the folder with llama-server of llama.cpp b11434, OUR_BIN the folder with specrun and specconv.
Both continue the prompts of models/prompts.jsonl greedily, one sequence at a time, llama.cpp without its
prompt cache; chains of speculators run with four sequences in both. For each TYPE (F32, BF16, Q8_0, Q4_K_M)
it runs the files and, unless they are F32, a copy with their values as F32. With F32 weights neither program
rounds activations, so the remaining differences are not caused by rounding. Drafts have 3 and 8 tokens;
n-gram speculators have their defaults. llama.cpp cannot load clusters of tokens; its assistant has none.

`texts` is the number of prompts with the same text; accepted and drafted tokens are totals over all prompts.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {
    "target": "tiny-qwen35-mtp",
    "draft": "tiny-draft",
    "eagle3": "tiny-eagle3",
    "dflash": "tiny-dflash",
    "gemma4": "tiny-gemma4",
    "clusters": "tiny-gemma4-assistant",
    "assistant": "tiny-gemma4-assistant",
}
PROMPTS = [json.loads(line) for line in (ROOT / "models/prompts.jsonl").open()]
PORT = 18096


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def files(specconv, folder, kind):
    """Returns the family in a type, and copies with its values as F32 unless it is F32."""
    made, images = {}, {}
    for role in MODELS:
        base = folder / f"{role}-BF16.gguf"
        if not base.exists():
            of = ["--target-model-dir", ROOT / "models" / MODELS["target"]]
            of = of if role in ("eagle3", "dflash") else []
            of += ["--no-clusters"] if role == "assistant" else []
            run(specconv, "convert", ROOT / "models" / MODELS[role], "--outfile", base, *of)
        made[role] = folder / f"{role}-{kind}.gguf"
        if not made[role].exists():
            run(specconv, "quantize", base, made[role], kind)
        if kind not in ("BF16", "F32"):
            images[role] = folder / f"{role}-of-{kind}.gguf"
            run(specconv, "quantize", made[role], images[role], "F32", "--allow-requantize")
    return {kind: made} | ({f"{kind} as F32": images} if images else {})


@contextlib.contextmanager
def server(peer_bin, model, flags, n_parallel):
    command = [peer_bin / "llama-server", "-m", model, "--port", PORT, "-np", n_parallel]
    command += ["-c", 1024 * n_parallel, "-t", 1, "--no-warmup", *flags]
    env = os.environ | {"LD_LIBRARY_PATH": str(peer_bin)}
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env=env)
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
                    break
                time.sleep(0.1)
            yield
        finally:
            child.kill()
            child.wait()


def theirs(peer_bin, model, flags, n_parallel):
    """Returns the tokens, and the numbers of drafted and accepted tokens, of each prompt in llama.cpp."""

    def answer(prompt):
        body = {"prompt": prompt["prompt"], "n_predict": prompt["n_predict"]}
        body |= {"temperature": 0, "cache_prompt": False, "return_tokens": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{PORT}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        answer = json.load(urllib.request.urlopen(request))
        timings = answer["timings"]
        return answer["tokens"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)

    with server(peer_bin, model, flags, n_parallel):
        with concurrent.futures.ThreadPoolExecutor(n_parallel) as pool:
            return list(pool.map(answer, PROMPTS))


def ours(specrun, model, flags, n_parallel):
    """Returns the tokens, and the numbers of drafted and accepted tokens, of each prompt in specrun."""
    prompts = ROOT / "models/prompts.jsonl"
    command = [specrun, "generate", "-m", model, "-f", prompts, "--json", "-np", n_parallel]
    lines = run(*command, *flags).splitlines()
    reports = map(json.loads, lines)
    counts = lambda report: (report["counters"]["n_drafted"], report["counters"]["n_accepted"])
    return [(report["tokens"], *counts(report)) for report in reports]


def cases(model):
    """Yields name, number of sequences, role of the target, and flags of each case."""
    for n in (3, 8):
        length = ["--spec-draft-n-max", n]
        yield f"draft-mtp {n}", 1, "target", ["--spec-type", "draft-mtp", *length]
        for kind, role in (
            ("draft-eagle3", "eagle3"),
            ("draft-dflash", "dflash"),
            ("draft-simple", "draft"),
        ):
            yield f"{kind} {n}", 1, "target", ["--spec-type", kind, "-md", model[role], *length]
        for role in ("assistant", "clusters"):
            yield f"{role} {n}", 1, "gemma4", ["--spec-type", "draft-mtp", "-md", model[role], *length]
    for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"):
        yield kind, 1, "target", ["--spec-type", kind]
    for first in ("ngram-simple", "ngram-map-k", "ngram-cache"):
        for n_parallel in (1, 4):
            chain = f"{first},draft-mtp"
            yield chain, n_parallel, "target", ["--spec-type", chain]
            yield f"{chain} (gemma4)", n_parallel, "gemma4", ["--spec-type", chain, "-md", model["assistant"]]
            chain = f"{first},draft-eagle3"
            yield chain, n_parallel, "target", ["--spec-type", chain, "-md", model["eagle3"]]


def rate(found):
    drafted, accepted = (sum(counts[i] for counts in found) for i in (1, 2))
    return f"{accepted}/{drafted} {accepted / max(drafted, 1):.3f}"


def same(a, b):
    """Compares two texts; only one program counts the end of the text as a token."""
    n = min(len(a), len(b))
    return a[:n] == b[:n] and abs(len(a) - len(b)) <= 1


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    peer_bin, our_bin = map(pathlib.Path, sys.argv[1:3])
    kinds = sys.argv[3:] or ["F32", "BF16", "Q8_0", "Q4_K_M"]
    columns = "{:16} {:31} {:>9} {:>18} {:>18} {:>6}"
    print(columns.format("weights", "speculator", "sequences", "ours", "peer", "texts"))
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            for name, model in files(our_bin / "specconv", pathlib.Path(folder), kind).items():
                for case, n_parallel, target, flags in cases(model):
                    a = ours(our_bin / "specrun", model[target], flags, n_parallel)
                    flags = [model["assistant"] if flag == model["clusters"] else flag for flag in flags]
                    b = theirs(peer_bin, model[target], flags, n_parallel)
                    texts = sum(same(x[0], y[0]) for x, y in zip(a, b))
                    row = columns.format(name, case, n_parallel, rate(a), rate(b), texts)
                    print(row, flush=True)


main()
