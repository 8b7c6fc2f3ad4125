"""Measures acceptance and drafting speed of drafts with a reduced vocabulary.

    cargo build --release --features full && python3 tests/peer/trimmed_heads.py [FOLDER_OF_THE_PROGRAMS]

Reduces the bundled MTP head and the bundled EAGLE-3 draft to the most frequent tokens in the Python files of
this interpreter's standard library, which are similar to the texts of the bundled family. Runs `specrun verify`
on models/prompts.jsonl, which are other texts, three times each. Prints the rows of the table in
docs/heads.md: coverage of held-out lines, accepted and drafted tokens, and tokens drafted per second of
drafting relative to the full head, as the median of the rounds.
"""

import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target/release"
ROUNDS = 3
CASES = {
    "draft-mtp": [None, 1024, 512, 256, 128],
    "draft-eagle3": [None, 384, 256, 128],
}


def run(program, *args):
    done = subprocess.run([PROGRAMS / program, *map(str, args)], capture_output=True, text=True)
    if done.returncode == 2:
        sys.exit(f"{program} {args}: {done.stderr}")
    return json.loads(done.stdout)


def measure(model, draft, speculator):
    """Returns accepted and drafted tokens, and tokens drafted per second."""
    files = ["-m", model] + (["-md", draft] if draft else [])
    report = run("specrun", "verify", *files, "--prompts", ROOT / "models/prompts.jsonl",
                 "--spec-type", speculator, "--min-accept", "0", "--json")
    if report["verdict"] != "pass":
        sys.exit(f"{speculator} of {draft or model}: the text changed")
    (counters,) = (s["counters"] for s in report["speculators"] if s["name"] == speculator)
    (own,) = (s for s in counters["by_speculator"] if s["name"] == speculator)
    accepted, drafted, ms = (own[key] for key in ("n_accepted", "n_drafted", "draft_ms"))
    return accepted, drafted, drafted / ms * 1e3


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        target, eagle3, corpus = folder / "m.gguf", folder / "e.gguf", folder / "corpus.txt"
        models = ROOT / "models"
        run("specconv", "convert", models / "tiny-qwen35-mtp", "-o", target, "--json")
        run("specconv", "convert", models / "tiny-eagle3", "--target-model-dir",
            models / "tiny-qwen35-mtp", "-o", eagle3, "--json")
        texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        corpus.write_bytes(b"".join(text.read_bytes() for text in texts))
        for speculator, sizes in CASES.items():
            layout = ["--layout", "specconv"] if speculator == "draft-mtp" else []
            full = target if speculator == "draft-mtp" else eagle3
            files, trims = {}, {}
            for n in sizes:
                files[n] = full
                if n is not None:
                    files[n] = folder / f"{speculator}-{n}.gguf"
                    trims[n] = run("specconv", "trim-vocab", full, *layout, "--text", corpus,
                                   "-n", n, "-o", files[n], "--json")
            results = {n: [] for n in sizes}
            for _ in range(ROUNDS):
                for n in sizes:
                    model, draft = (files[n], None) if speculator == "draft-mtp" else (target, files[n])
                    results[n].append(measure(model, draft, speculator))
            base = statistics.median(speed for _, _, speed in results[None])
            for n in sizes:
                accepted, drafted, _ = results[n][0]
                speed = statistics.median(speed for _, _, speed in results[n]) / base
                trim = trims.get(n)
                rows = f"{trim['n_draft']} rows" if trim else "all it has"
                coverage = f"{100 * trim['coverage']:.1f} %" if trim else ""
                print(f"| {speculator} | {rows} | {coverage} | {accepted} of {drafted}, "
                      f"{accepted / drafted:.3f} | {speed:.2f} |", flush=True)


main()
