#!/usr/bin/env python3
"""Fills the golden files beside it with what llama-quantize --dry-run says.

    dry_run.py path/to/llama-quantize [FILE.txt ...]

Reads a model's keys and tensors from the head of each file, writes a GGUF of them whose weights
are a hole, and replaces the rest of the file. The format is described in ../mix.rs.
"""

import pathlib
import re
import struct
import subprocess
import sys
import tempfile

FTYPES = """F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M
Q5_K_S Q5_K_M Q6_K IQ4_NL IQ4_XS MXFP4_MOE COPY""".split()
SCALARS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}
DTYPES = {"F32": (0, 4), "BF16": (30, 2)}


def expand(name):
    """Full names of `blk.{0-3,7}.rest`."""
    m = re.fullmatch(r"blk\.\{(.*)\}\.(.*)", name)
    if not m:
        return [name]
    layers = []
    for part in m[1].split(","):
        first, _, last = part.partition("-")
        layers += range(int(first), int(last or first) + 1)
    return [f"blk.{i}.{m[2]}" for i in layers]


def contract(names):
    """The opposite, for names in file order."""
    rows, out = {}, []
    for name in names:
        m = re.fullmatch(r"blk\.(\d+)\.(.*)", name)
        if m:
            rows.setdefault(m[2], []).append(int(m[1]))
        else:
            out.append(name)
    for row, layers in rows.items():
        parts, first = [], layers[0]
        for i, layer in enumerate(layers):
            if i + 1 == len(layers) or layers[i + 1] != layer + 1:
                parts.append(f"{first}-{layer}" if layer > first else f"{layer}")
                first = layers[i + 1] if i + 1 < len(layers) else None
        out.append(f"blk.{{{','.join(parts)}}}.{row}")
    return out


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def value(kind, words):
    if kind == "str":
        return struct.pack("<I", 8) + string(" ".join(words))
    ident, form = SCALARS[kind.removesuffix("[]")]
    parse = {"f32": float, "bool": lambda w: w == "true"}.get(kind.removesuffix("[]"), int)
    items = b"".join(struct.pack(form, parse(w)) for w in words)
    if kind.endswith("[]"):
        return struct.pack("<IIQ", 9, ident, len(words)) + items
    return struct.pack("<I", ident) + items


def write_gguf(head, path):
    keys, infos, end, types = [], [], 0, {}
    for line in head:
        words = line.split()
        if words[:1] == ["key"]:
            keys.append(string(words[1]) + value(words[2], words[3:]))
        elif words[:1] == ["tensor"]:
            ident, size = DTYPES[words[1]]
            shape = [int(n) for n in words[3:]]
            for name in expand(words[2]):
                info = string(name) + struct.pack("<I", len(shape))
                info += struct.pack(f"<{len(shape)}Q", *shape)
                infos.append(info + struct.pack("<IQ", ident, end))
                types[name] = words[1]
                for n in shape:
                    size *= n
                end += -(-size // 32) * 32
                size = DTYPES[words[1]][1]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys))
    header += b"".join(keys + infos)
    with open(path, "wb") as f:
        f.write(header + bytes(-len(header) % 32))
        f.truncate(f.tell() + end)
    return types


def dry_run(quantize, gguf, ftype, types):
    done = subprocess.run([quantize, "--dry-run", gguf, ftype], capture_output=True, text=True)
    log = done.stdout + done.stderr
    if done.returncode:
        reason = [line for line in log.splitlines() if "failed" in line or "rror" in line]
        return [f"refused {reason[0].strip() if reason else ''}"]
    found = {}
    for line in log.splitlines():
        m = re.match(r"\[ *\d+/ *\d+\] +(\S+) .*type = +(\w+), size = .*?(?:\((\w+)\))?$", line)
        if m:
            found[m[1]] = (m[3] or m[2]).upper()
    assert found.keys() == types.keys(), types.keys() ^ found.keys()
    default = {"MXFP4_MOE": "Q8_0"}.get(ftype, re.sub("(_K)_.", r"\1", ftype))
    by_type = {}
    for name, dtype in found.items():
        usual = types[name] if types[name] == "F32" or ftype == "COPY" else default
        if dtype != usual:
            by_type.setdefault(dtype, []).append(name)
    lines = [f"{dtype} {name}" for dtype in sorted(by_type) for name in contract(by_type[dtype])]
    m = re.search(r"WARNING: (\d+) of \d+ tensor\(s\) required fallback", log)
    return lines + ([f"fallback {m[1]}"] if m else [])


def main(quantize, paths):
    for path in paths:
        head = path.read_text().split("\n[", 1)[0].rstrip().splitlines()
        out = "\n".join(head) + "\n"
        with tempfile.TemporaryDirectory() as folder:
            gguf = f"{folder}/model.gguf"
            types = write_gguf(head, gguf)
            for ftype in FTYPES:
                lines = dry_run(quantize, gguf, ftype, types)
                out += "\n" + "\n".join([f"[{ftype}]"] + lines) + "\n"
        path.write_text(out)


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    main(sys.argv[1], [pathlib.Path(p) for p in sys.argv[2:]] or sorted(here.glob("*.txt")))
