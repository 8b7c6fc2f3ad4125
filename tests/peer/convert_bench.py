"""Times `specconv convert` against `cp` of the same bytes, and against llama.cpp's converter.

    convert_bench.py SPECCONV [--rounds N] [--dir DIR] [--peer PYTHON LLAMA_CPP_SOURCES]

Makes a random BF16 checkpoint with the shapes of Qwen3-0.6B (1.2 GB) in a temporary folder under
DIR, then runs everything once to warm the page cache, and N times alternately. Prints medians, their
ratios to `cp`, and peak memory. Our times include syncing the file to disk. `cp` does not sync, so `cp`
followed by a sync is measured, too. Needs no packages; llama.cpp's converter needs its own.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOKENIZER = Path(__file__).parent.parent / "reference" / "qwen3"

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "eos_token_id": 902,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}

LAYER = {
    "input_layernorm": [1024],
    "mlp.down_proj": [1024, 3072],
    "mlp.gate_proj": [3072, 1024],
    "mlp.up_proj": [3072, 1024],
    "post_attention_layernorm": [1024],
    "self_attn.k_norm": [128],
    "self_attn.k_proj": [1024, 1024],
    "self_attn.o_proj": [1024, 2048],
    "self_attn.q_norm": [128],
    "self_attn.q_proj": [2048, 1024],
    "self_attn.v_proj": [1024, 1024],
}


def shapes():
    yield "model.embed_tokens.weight", [CONFIG["vocab_size"], 1024]
    for i in range(CONFIG["num_hidden_layers"]):
        for name, shape in LAYER.items():
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", [1024]


def random_bf16(rng, n_bytes):
    """Returns weights with magnitudes from 2^-9 to 2^-6."""
    data = bytearray(rng.randbytes(n_bytes))
    data[1::2] = bytes(0x3B + b % 2 + (b & 0x80) for b in data[1::2])
    return bytes(data)


def make_checkpoint(folder):
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]:
        if (TOKENIZER / name).exists():
            shutil.copy(TOKENIZER / name, folder)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    header, end = {}, 0
    for name, shape in shapes():
        n_bytes = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(header).encode()
    block = random_bf16(random.Random(1), 8 << 20)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end, len(block)):
            file.write(block[: min(len(block), end - at)])
    return end


def timed(command, **options):
    """Returns the seconds and peak memory in MB of a command that must succeed."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    messages = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{command}: status {status}\n{messages.decode()[-2000:]}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("specconv", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--peer", nargs=2, metavar=("PYTHON", "SOURCES"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as work:
        folder = Path(work) / "Qwen3-0.6B-random"
        folder.mkdir()
        n_bytes = make_checkpoint(folder)
        weights, out = folder / "model.safetensors", Path(work) / "out"
        convert = [args.specconv.resolve(), "convert", folder, "--overwrite", "-o", out,
                   "--outtype"]
        commands = {
            "cp": ["cp", weights, out],
            "cp, sync": ["sh", "-c", 'cp "$0" "$1" && sync "$1"', weights, out],
            "convert to bf16": convert + ["bf16"],
            "convert to q8_0": convert + ["q8_0"],
        }
        if args.peer:
            python, sources = args.peer
            script = (
                "import sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/gguf-py'];"
                "from conversion import TextModel;"
                "TextModel.get_vocab_base_pre = lambda *_: 'qwen2';"
                "import convert_hf_to_gguf as peer;"
                "sys.argv = ['convert'] + sys.argv[2:]; peer.main()"
            )
            peer = [python, "-c", script, sources, folder, "--outfile", out, "--outtype"]
            commands["peer to bf16"] = peer + ["bf16"]
            commands["peer to q8_0"] = peer + ["q8_0"]
        results = {name: [] for name in commands}
        for round_ in range(args.rounds + 1):
            for name, command in commands.items():
                if name.startswith("peer") and round_ > 1:
                    continue
                out.unlink(missing_ok=True)
                os.sync()
                result = timed(command)
                if round_ > 0:
                    results[name].append(result)
        base = statistics.median(seconds for seconds, _ in results["cp"])
        print(f"{n_bytes / 1e9:.2f} GB of BF16, medians of {args.rounds} alternated runs")
        print(f"{'':16} {'seconds':>8} {'/ cp':>6} {'peak MB':>8}   seconds of each run")
        for name, runs in results.items():
            seconds = statistics.median(seconds for seconds, _ in runs)
            memory = max(memory for _, memory in runs)
            each = " ".join(f"{seconds:.2f}" for seconds, _ in runs)
            print(f"{name:16} {seconds:8.2f} {seconds / base:6.2f} {memory:8.0f}   {each}")
        if args.peer:
            for outtype in ["bf16", "q8_0"]:
                ours = statistics.median(seconds for seconds, _ in results[f"convert to {outtype}"])
                theirs = results[f"peer to {outtype}"][0][0]
                print(f"{outtype}: the peer's converter takes {theirs / ours:.1f} times as long")


main()
