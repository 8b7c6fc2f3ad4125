#!/usr/bin/env python3
"""Called by overhead.sh in the folder of in.gguf.

usage: overhead.py SPECCONV
"""

import filecmp
import glob
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys

ROUNDS = 3


def seconds(commands):
    """Runs commands, and returns their CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for command in commands:
        subprocess.run([*command, "-q"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def clear(name):
    shutil.rmtree(f"{name}.json.parts", ignore_errors=True)
    for path in glob.glob(f"{name}*.gguf") + [f"{name}.json"]:
        pathlib.Path(path).unlink(missing_ok=True)


def main():
    specconv = sys.argv[1]
    if not glob.glob("split-*.gguf"):
        size = os.path.getsize("in.gguf") // 16 + 16_000_000
        split = [specconv, "split", "--split-max-size", str(size), "in.gguf", "split"]
        subprocess.run([*split, "-q"], check=True, stdout=subprocess.DEVNULL)
    kinds = {
        "one file": (["quantize", "in.gguf"], ["shared", "separate"]),
        "split model": (["quantize", "--keep-split", min(glob.glob("split-*.gguf"))], ["shared"]),
    }
    print(f"in.gguf: {os.path.getsize('in.gguf') / 1e9:.2f} GB of F16 to Q4_K_M, CPU time in seconds, medians of {ROUNDS}\n")
    print("| | parts | one run | shards | plan | run | finish | all | overhead |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for kind, (start, forms) in kinds.items():
        alone, divided = [], {(form, n): [] for form in forms for n in (1, 4, 16)}
        for _ in range(ROUNDS):
            clear("alone")
            alone.append(seconds([[specconv, *start, "alone.gguf", "Q4_K_M"]]))
            for (form, n), times in divided.items():
                clear("shards")
                plan = [specconv, "plan", *start, "shards.gguf", "Q4_K_M", "-o", "shards.json"]
                plan += ["--shards", str(n), "--parts", form]
                runs = [[specconv, "run", "shards.json", "--shard", str(i)] for i in range(n)]
                finish = [specconv, "finish", "shards.json"]
                times.append([seconds([plan]), seconds(runs), seconds([finish])])
                for path in glob.glob("alone*.gguf"):
                    assert filecmp.cmp(path, path.replace("alone", "shards"), shallow=False), path
        base = statistics.median(alone)
        for (form, n), times in divided.items():
            parts = [statistics.median(column) for column in zip(*times)]
            total = statistics.median(sum(row) for row in times)
            cells = [f"{x:.2f}" for x in (*parts, total)]
            print(f"| {kind} | {form} | {base:.2f} | {n} | " + " | ".join(cells) + f" | {100 * (total / base - 1):+.1f} % |")
        clear("alone")
        clear("shards")


main()
