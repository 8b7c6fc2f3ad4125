#!/usr/bin/env python3
"""Fills the files beside it with the size and hash of what llama-quantize makes of their models.

    goldens.py path/to/llama-quantize [FILE.txt ...]

A file describes a model in the words of quantize/tests/quantize/golden: keys and tensors, where
`part` begins another file of a split model, and after `imatrix` those of an importance matrix. For
each `run` line the program is run with these flags, and the line is followed by the name, size and
SHA-256 of every file that it writes. `run again` takes the output of the run before as its input.

Element i of the k-th tensor is the upper half of splitmix64(k << 32 | i), a multiple of 2^-28
between -1/32 and 1/32; sums of an importance matrix are squares of these and counts are 3, 0, 5, 1
in turn. tests/quantize.rs makes the same files.
"""

import hashlib
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parents[2] / "quantize/tests/quantize/golden"))
from dry_run import DTYPES, expand, string, value as plain_value  # noqa: E402

DTYPES = DTYPES | {"F16": (1, 2)}
MASK = (1 << 64) - 1


def splitmix64(state):
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def element(name, k, i):
    if name.endswith(".counts"):
        return float((3, 0, 5, 1)[i % 4])
    x = ((splitmix64(k << 32 | i) >> 40) - (1 << 23)) / (1 << 28)
    return x * x if name.endswith(".in_sum2") else x


def encode(dtype, x):
    if dtype == "BF16":
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
        return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return struct.pack({"F32": "<f", "F16": "<e"}[dtype], x)


def value(kind, words):
    if kind == "str[]":
        return struct.pack("<IIQ", 9, 8, len(words)) + b"".join(map(string, words))
    if kind in ("u16", "i32"):
        form, ident = {"u16": ("<H", 2), "i32": ("<i", 5)}[kind]
        return struct.pack("<I", ident) + struct.pack(form, int(words[0]))
    return plain_value(kind, words)


def write_gguf(keys, tensors, path):
    infos, data = [], b""
    for k, (dtype, name, shape) in tensors:
        ident, _ = DTYPES[dtype]
        infos.append(string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
                     + struct.pack("<IQ", ident, len(data)))
        n = 1
        for axis in shape:
            n *= axis
        data += b"".join(encode(dtype, element(name, k, i)) for i in range(n))
        data += bytes(-len(data) % 32)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys))
    header += b"".join(string(words[0]) + value(words[1], words[2:]) for words in keys)
    header += b"".join(infos)
    path.write_bytes(header + bytes(-len(header) % 32) + data)


def write_model(lines, folder, stem):
    """Writes the model, or the parts of it, and returns the name of the first file."""
    parts, keys, k = [[]], [], 0
    for line in lines:
        words = line.split()
        if words[:1] == ["part"]:
            parts.append([])
        elif words[:1] == ["key"]:
            keys.append(words[1:])
        elif words[:1] == ["tensor"]:
            for name in expand(words[2]):
                parts[-1].append((k, (words[1], name, [int(n) for n in words[3:]])))
                k += 1
    if len(parts) == 1:
        write_gguf(keys, parts[0], folder / f"{stem}.gguf")
        return f"{stem}.gguf"
    for no, part in enumerate(parts):
        split = [["split.no", "u16", str(no)], ["split.count", "u16", str(len(parts))],
                 ["split.tensors.count", "i32", str(k)]]
        name = f"{stem}-{no + 1:05}-of-{len(parts):05}.gguf"
        write_gguf((keys if no == 0 else []) + split, part, folder / name)
    return f"{stem}-00001-of-{len(parts):05}.gguf"


def run(quantize, flags, folder, name):
    if flags[0] == "again":
        (folder / "out.gguf").rename(folder / "previous.gguf")
        flags, name = flags[1:], "previous.gguf"
    for old in folder.glob("out*"):
        old.unlink()
    *options, ftype = flags
    done = subprocess.run([quantize, *options, name, "out.gguf", ftype], cwd=folder,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [f"{path.name} {path.stat().st_size} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            for path in sorted(folder.glob("out*"))]


def main(quantize, paths):
    quantize = pathlib.Path(quantize).resolve()
    for path in paths:
        lines = path.read_text().splitlines()
        head = [line for line in lines if not line.startswith(("run ", "out"))]
        runs = [line for line in lines if line.startswith("run ")]
        split = head.index("imatrix") if "imatrix" in head else len(head)
        out = "\n".join(head).rstrip() + "\n\n"
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            name = write_model(head[:split], folder, "model")
            if split < len(head):
                write_model(head[split:], folder, "imatrix")
            for line in runs:
                out += "\n".join([line] + run(quantize, line.split()[1:], folder, name)) + "\n"
        path.write_text(out)


if __name__ == "__main__":
    main(sys.argv[1], [pathlib.Path(p) for p in sys.argv[2:]] or sorted(HERE.glob("*.txt")))
