"""Makes the checkpoint dflash2-qwen3 from dflash-qwen3, and records what llama.cpp drafts with it.

    python3 dflash2.py LLAMA_SERVER SPECCONV

LLAMA_SERVER and SPECCONV are the programs of llama.cpp b11434 and of this repository. The layers are those of dflash-qwen3;
convolutions and selector are random. Both programs read the files of our converter, with F32 weights. Needs jax and
safetensors.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import jax.numpy as jnp
from safetensors.flax import load_file, save_file

HERE = Path(__file__).resolve().parent
OUT = HERE / "dflash2-qwen3"
KERNEL, GROUP, RANK, TOP_K = 3, 16, 16, 6
PORT = 18097
N_MAX = [1, 2, 3, 5]


def make():
    rng = np.random.default_rng(29)
    source = HERE / "dflash-qwen3"
    config = json.loads((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    width, n_vocab = config["hidden_size"], config["vocab_size"]
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    for layer in range(config["num_hidden_layers"]):
        for module in ("attention_conv", "mlp_conv"):
            base = 0.2 * normal(2, KERNEL, width)
            base[:, 0] += 1
            weights[f"layers.{layer}.{module}.base_kernel"] = base
            projection = normal(2 * KERNEL * width // GROUP, width) * 0.2 / width**0.5
            weights[f"layers.{layer}.{module}.kernel_projection.weight"] = projection
    selector = {
        "predecessor_codebook": normal(n_vocab, RANK),
        "successor_codebook": normal(n_vocab, RANK),
        "hidden_projection.weight": normal(RANK, width) / width**0.5,
    }
    weights |= {f"candidate_selector.{name}": w for name, w in selector.items()}
    config["architectures"] = ["DFlash2DraftModel"]
    config["dflash_config"] |= {
        "conv_kernel_size": KERNEL,
        "conv_group_size": GROUP,
        "selector_rank": RANK,
        "selector_top_k": TOP_K,
        "output_multiplier": 0.8,
        "final_logit_softcapping": 12.0,
    }
    OUT.mkdir(exist_ok=True)
    (OUT / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: jnp.asarray(w, jnp.bfloat16) for name, w in sorted(weights.items())}
    save_file(weights, OUT / "model.safetensors", {"format": "pt"})


def complete(prompt, n_predict):
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "cache_prompt": False}
    body |= {"return_tokens": True, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


def speculation(server, target, draft, prompt, n_max, n_predict=128):
    command = [server, "-m", target, "-md", draft, "--port", PORT, "-np", 1, "-c", 1024, "-t", 1, "--no-warmup"]
    command += ["-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-fa", "off"]
    command += ["--spec-type", "draft-dflash", "--spec-draft-n-max", n_max]
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        answer = complete(prompt, n_predict)
    finally:
        child.kill()
        child.wait()
    counts = {name: answer["timings"][name] for name in ("draft_n", "draft_n_accepted")}
    return {"n_max": n_max, "n_predict": n_predict, "tokens": answer["tokens"]} | counts


def main():
    server, specconv = sys.argv[1:]
    make()
    prompt = json.loads((HERE / "dflash-qwen3/logits.json").read_text())["prompt"]
    with tempfile.TemporaryDirectory() as folder:
        target, draft = Path(folder) / "target.gguf", Path(folder) / "draft.gguf"
        convert = [specconv, "convert", "--outtype", "f32"]
        subprocess.run([*convert, HERE / "qwen3", "-o", target], check=True)
        of_target = ["--target-model-dir", HERE / "qwen3"]
        subprocess.run([*convert, OUT, *of_target, "-o", draft], check=True)
        runs = [speculation(server, target, draft, prompt, n_max) for n_max in N_MAX]
    golden = {"checkpoint": "dflash2-qwen3", "peer": "b11434", "prompt": prompt, "speculation": runs}
    (OUT / "logits.json").write_text(json.dumps(golden) + "\n")


main()
