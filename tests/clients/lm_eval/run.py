"""Runs lm-eval against a server. Scores must be equal for every batch size and number of concurrent
requests, and a rolling log-likelihood must give the perplexity of `specrun perplexity`.

usage: run.py URL [SPECRUN MODEL.gguf]      with the program and the file that the server runs
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import lm_eval
from lm_eval.tasks import TaskManager

FOLDER = pathlib.Path("tests/clients/lm_eval")
SERVER = sys.argv[1]
# Tokens of the text that `specrun perplexity` scores, with the one that lm-eval puts before every text.
N_CTX = 256
# Log-probabilities arrive as 32-bit numbers.
TOLERANCE = 1e-6


def evaluate(model, path, tasks, batch_size, n_concurrent, folders=(), **more):
    results = lm_eval.simple_evaluate(
        model=model,
        model_args={
            "model": "model",
            "base_url": f"{SERVER}/v1/{path}",
            "max_length": 512,
            "num_concurrent": n_concurrent,
            "max_retries": 1,
        },
        tasks=tasks,
        batch_size=batch_size,
        task_manager=TaskManager(include_path=[str(FOLDER), *folders], include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        **more,
    )
    replies = {task: [sample["resps"] for sample in samples] for task, samples in results["samples"].items()}
    return results["results"], replies


def post(path, body):
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))


def tokenize(text):
    return post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def cut(tokens, n):
    """Returns the text of the first `n` tokens, which must have the same tokens again."""
    text = post("/detokenize", {"tokens": tokens[:n]})["prompt"]
    return text if tokenize(text) == tokens[:n] else None


def texts_with_halves():
    """Returns a text and its first half. With lm-eval's first token they have N_CTX tokens, and those up to the
    first one that `specrun perplexity` scores."""
    prompts = [json.loads(line)["prompt"] for line in open("models/prompts.jsonl")]
    for start in range(len(prompts)):
        tokens = tokenize("".join(prompts[start:] + prompts[:start]))
        texts = [cut(tokens, N_CTX - 1), cut(tokens, N_CTX // 2)]
        if all(texts):
            return texts
    sys.exit(f"no text can be cut after {N_CTX // 2} and {N_CTX - 1} tokens")


def same_as_perplexity(specrun, model):
    """`specrun perplexity` scores the second half of a text after the first. That is the log-likelihood of the
    whole text less that of its first half."""
    whole, half = texts_with_halves()
    first = json.load(urllib.request.urlopen(SERVER + "/tokenizer_info"))
    first = first["bos_token"] or first["eos_token"]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        rows = [{"question": text, "choices": [""], "answer": 0} for text in (whole, half)]
        (folder / "halves.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = (FOLDER / "rolling.yaml").read_text().replace("specconv_rolling", "specconv_halves")
        task = task.replace("tests/clients/lm_eval/texts.jsonl", str(folder / "halves.jsonl"))
        (folder / "halves.yaml").write_text(task)
        (folder / "text.txt").write_text(first + whole)
        _, replies = evaluate("local-completions", "completions", ["specconv_halves"], 1, 2, [str(folder)])
        command = [specrun, "perplexity", "-m", model, "-f", folder / "text.txt", "-c", N_CTX, "--json"]
        report = json.loads(subprocess.run(map(str, command), capture_output=True, check=True).stdout)
    whole, half = (float(reply[0][0]) for reply in replies["specconv_halves"])
    found, expected = math.exp((half - whole) / report["n_scored"]), report["perplexity"]
    print(f"perplexity of {report['n_scored']} tokens: {found:.8f}, specrun perplexity: {expected:.8f}")
    if abs(found / expected - 1) > TOLERANCE:
        sys.exit("the perplexities differ")


# Arguments of `evaluate` that must not change a score, and pairs of batch size and concurrent requests. Chats have
# one prompt each.
RUNS = [
    (("local-completions", "completions", ["specconv_generate", "specconv_choice", "specconv_rolling"]), {},
     [(1, 1), (3, 1), (1, 4), (2, 3)]),
    (("local-chat-completions", "chat/completions", ["specconv_chat"]), {"apply_chat_template": True},
     [(1, 1), (1, 4)]),
]


def main():
    for args, more, sizes in RUNS:
        first = None
        for batch_size, n_concurrent in sizes:
            found = evaluate(*args, batch_size, n_concurrent, **more)
            first = first or found
            if found != first:
                sys.exit(f"batch size {batch_size}, {n_concurrent} concurrent: {found[0]}, expected {first[0]}")
        shown = ", ".join(f"{batch_size} x {n_concurrent}" for batch_size, n_concurrent in sizes)
        print(f"{args[0]}: equal scores and replies with batch size x concurrent requests {shown}")
        for task, values in first[0].items():
            print(task, {name: round(float(x), 4) for name, x in values.items() if isinstance(x, float)})
    if len(sys.argv) > 2:
        same_as_perplexity(*sys.argv[2:])


main()
