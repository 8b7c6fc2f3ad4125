"""Writes fp8.json: what llama.cpp's converter makes of FP8 checkpoints.

    fp8_goldens.py LLAMA_CPP_SOURCES

Each checkpoint is qwen3 with the weights of its projections replaced by codes and scales from a
generator that convert/tests/scaled.rs has too, so none of them is stored. Needs torch and
transformers.
"""

import hashlib
import json
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "qwen3"
PRE = "qwen2"

BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic"}
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"type": "float", "num_bits": 8, "strategy": "channel", "symmetric": True},
        }
    },
    "ignore": ["lm_head"],
}
# Name: element type, name of the scales, their type, block or axis, quantization_config.
CASES = {
    "blocks": ("F8_E4M3", "_scale_inv", "F32", [48, 40], BLOCKS | {"weight_block_size": [48, 40]}),
    "large-blocks": ("F8_E4M3", "_scale_inv", "BF16", [128, 128], BLOCKS | {"weight_block_size": [128, 128]}),
    "channels": ("F8_E4M3", "_scale", "BF16", "row", CHANNELS),
    "tensors": ("F8_E4M3", "_scale", "F32", "tensor", {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "e5m2": ("F8_E5M2", "_scale_inv", "F32", "scalar", BLOCKS),
    "unscaled": ("F8_E4M3", None, None, None, None),
    "f64": ("F64", None, None, None, None),
}
OUTTYPES = ["f32", "bf16", "q8_0"]


def numbers(seed):
    x = seed
    while True:
        x = (x * 1664525 + 1013904223) % 2**32
        yield x


def codes(rng, n, dtype):
    out = bytearray()
    for _ in range(n):
        code = next(rng) >> 24
        if dtype == "F8_E4M3" and code & 0x7F == 0x7F or dtype == "F8_E5M2" and code & 0x7C == 0x7C:
            code ^= 0x40
        out.append(code)
    return bytes(out)


def scale_shape(shape, block):
    match block:
        case "row":
            return [shape[0], 1]
        case "tensor":
            return [1]
        case "scalar":
            return []
        case [rows, columns]:
            return [-(-shape[0] // rows), -(-shape[1] // columns)]


def scales(rng, n, dtype):
    values = [((next(rng) >> 25) + 1) / 1024 for _ in range(n)]
    floats = [struct.pack("<f", value) for value in values]
    return b"".join(floats if dtype == "F32" else [value[2:] for value in floats])


def product(shape):
    return shape[0] * product(shape[1:]) if shape else 1


def checkpoint(folder, case):
    dtype, suffix, scale_dtype, block, settings = CASES[case]
    for file in SOURCE.iterdir():
        if file.name != "model.safetensors":
            shutil.copy(file, folder)
    config = json.loads((SOURCE / "config.json").read_text())
    if settings is not None:
        config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config))
    data = (SOURCE / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    tensors = {}
    for i, name in enumerate(sorted(header)):
        info = header[name]
        begin, end = info["data_offsets"]
        stored = data[8 + length + begin : 8 + length + end]
        if not name.endswith("_proj.weight"):
            tensors[name] = (info["dtype"], info["shape"], stored)
            continue
        if dtype == "F64":
            singles = (struct.unpack("<f", b"\0\0" + stored[k : k + 2])[0] for k in range(0, len(stored), 2))
            tensors[name] = ("F64", info["shape"], b"".join(struct.pack("<d", x / 3) for x in singles))
            continue
        rng = numbers(i + 1)
        tensors[name] = (dtype, info["shape"], codes(rng, product(info["shape"]), dtype))
        if suffix:
            shape = scale_shape(info["shape"], block)
            tensors[name + suffix] = (scale_dtype, shape, scales(rng, product(shape), scale_dtype))
            tensors[name.removesuffix("weight") + "input_scale"] = ("F32", [], struct.pack("<f", 1.0))
    if case not in ("tensors",):
        tensors = {name: t for name, t in tensors.items() if not name.endswith("input_scale")}
    header, body = {}, b""
    for name, (dtype, shape, stored) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(stored)]}
        body += stored
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    sources = Path(sys.argv[1])
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    sys.argv = ["convert_hf_to_gguf.py"]
    import convert_hf_to_gguf as peer
    from conversion import TextModel

    # Detection knows only released tokenizers.
    TextModel.get_vocab_base_pre = lambda self, tokenizer: PRE
    golden = {}
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            folder = Path(work) / case / "qwen3"
            folder.mkdir(parents=True)
            checkpoint(folder, case)
            for outtype in OUTTYPES:
                out = Path(work) / "out.gguf"
                sys.argv = ["convert", str(folder), "--outtype", outtype, "--outfile", str(out)]
                peer.main()
                digest = hashlib.sha256(out.read_bytes()).hexdigest()
                golden[f"{case} {outtype}"] = digest
                os.remove(out)
    (HERE / "fp8.json").write_text(json.dumps(golden, indent=1) + "\n")


main()
