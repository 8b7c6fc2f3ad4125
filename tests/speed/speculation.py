"""Measures the gain of speculation and compares it with the goals. Started by run.sh.

usage: speculation.py SPECRUN SPECCONV WORK [GOAL..] [-m MODEL.gguf] [-f PROMPTS.jsonl] [--threads N]
       [--rounds N] [--busy]

Every round runs all rows of a table one after another. A ratio is the median of the ratios of its rounds, so a
slow round does not change it. Each round waits until the CPU is idle.

Goals:
  repetitive  n-gram speculators on repetitive texts: 2 times plain decoding
  parallel    4 sequences drafted together: 1.5 times the tokens/s of one after another; also prints the
              tokens drafted per second of drafting
  auto        --spec-draft-auto: at most 3 % below plain decoding with any speculator
  break-even  drafting is faster where it pays according to `specrun bench`
"""

import argparse
import json
import math
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys

from idle import wait_until_idle

MODELS = pathlib.Path("models")
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
FIXED = (1, 2, 3, 5, 8)
# Expected speedup above which drafting must be faster, as in `specrun bench --tasks`.
CLEARLY = 1.05
# Length of matches and of drafts, in tokens.
NGRAM, DRAFT = 4, 8


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("specrun")
    parser.add_argument("specconv")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("goals", nargs="*", metavar="GOAL")
    parser.add_argument("-m", "--model", help="another target, without drafts: only n-grams are tried")
    parser.add_argument("-f", "--prompts", type=pathlib.Path, help="other prompts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="do not wait until the CPU is idle")
    args = parser.parse_args()
    unknown = set(args.goals) - set(GOALS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(GOALS)}")
    return args


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}\nexit {done.returncode}\n{done.stderr[-4000:]}")
    return done


class Files:
    """Files and flags of the measured models."""

    def __init__(self, args):
        self.args, self.work = args, args.work
        self.drafts = {}
        if args.model:
            self.target = args.model
            return
        target = MODELS / "tiny-qwen35-mtp"
        of_target = ["--target-model-dir", target]
        self.target = self.convert(target, "target")
        self.drafts = {
            "draft-mtp": ["--spec-type", "draft-mtp"],
            "draft-simple": ["-md", self.convert(MODELS / "tiny-draft", "draft")],
            "draft-eagle3": ["-md", self.convert(MODELS / "tiny-eagle3", "eagle3", *of_target)],
            "draft-dflash": ["-md", self.convert(MODELS / "tiny-dflash", "dflash", *of_target)],
        }

    def convert(self, checkpoint, name, *flags):
        out = self.work / f"{name}.gguf"
        run(self.args.specconv, "convert", checkpoint, *flags, "-o", out)
        return out

    def hopeless(self):
        """Returns the draft with its embeddings shifted by one row: none of its tokens are accepted."""
        folder = self.work / "hopeless"
        shutil.copytree(MODELS / "tiny-draft", folder)
        file = next(folder.glob("*.safetensors"))
        data = bytearray(file.read_bytes())
        (n_header,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + n_header])
        name = next(name for name in header if name.endswith("embed_tokens.weight"))
        start, end = (8 + n_header + at for at in header[name]["data_offsets"])
        row = (end - start) // header[name]["shape"][0]
        data[start:end] = data[end - row : end] + data[start : end - row]
        file.write_bytes(data)
        return self.convert(folder, "hopeless")

    def prompts(self, kind=None):
        """Returns the prompts, all or those of a kind."""
        if self.args.prompts or kind is None:
            return self.args.prompts or MODELS / "prompts.jsonl"
        lines = (MODELS / "prompts.jsonl").read_text().splitlines(keepends=True)
        file = self.work / f"{kind}.jsonl"
        file.write_text("".join(line for line in lines if json.loads(line)["kind"] == kind))
        return file

    def repeated(self, times):
        """Returns the prompts, repeated several times."""
        lines = [json.loads(line) for line in pathlib.Path(self.prompts()).read_text().splitlines()]
        file = self.work / "repeated.jsonl"
        with file.open("w") as out:
            for i in range(times):
                for line in lines:
                    print(json.dumps(line | {"id": f"{line['id']}-{i}"}), file=out)
        return file

    def generate(self, prompts, flags):
        """Returns the counters of a run: tokens/s, tokens per pass, drafted and accepted tokens."""
        done = run(self.args.specrun, "generate", "-m", self.target, "-f", prompts,
                   "-t", self.args.threads, *flags)
        counters = done.stderr.split("\nstatistics")[0]

        def number(pattern):
            found = re.search(pattern, counters)
            return float(found.group(1)) if found else None

        return {
            "text": done.stdout,
            "speed": number(r"([\d.]+) tok/s"),
            "length": number(r"([\d.]+) tokens/pass") or 1.0,
            "drafted": number(r"drafted (\d+)"),
            "accepted": number(r"accepted (\d+)"),
            "draft_ms": sum(float(ms) for ms in re.findall(r"dur\(b,g,a\) = [\d.]+, ([\d.]+)", done.stderr)),
            "drafts": sum(int(n) for n in re.findall(r"#calls\(b,g,a\) = \d+ \d+ (\d+)", done.stderr)),
        }

    def wait(self):
        if not self.args.busy:
            wait_until_idle()

    def measure(self, prompts, rows):
        """Returns the runs of each row by name, one per round. All runs must give the same texts."""
        runs = {name: [] for name in rows}
        for _ in range(self.args.rounds):
            self.wait()
            for name, flags in rows.items():
                runs[name].append(self.generate(prompts, flags))
        check_texts(one for of_row in runs.values() for one in of_row)
        return runs


def check_texts(runs):
    if len({one["text"] for one in runs}) > 1:
        sys.exit("texts differ")


def median(runs, what="speed"):
    return statistics.median(one[what] for one in runs)


def ratio(runs, base):
    return statistics.median(a["speed"] / b["speed"] for a, b in zip(runs, base))


def verdict(holds):
    return "" if holds is None else "  holds" if holds else "  MISSED"


def table(runs, base, goal):
    """Prints rows over one of them; `goal` says by name whether a ratio is good enough, None where
    nothing is asked."""
    print(f"{'':34} {'tokens/s':>9} {'/pass':>7} {'ratio':>6}")
    for name, of_row in runs.items():
        found = ratio(of_row, runs[base])
        print(f"{name:34} {median(of_row):9.1f} {median(of_row, 'length'):7.2f} {found:6.2f}"
              f"{verdict(goal(name, found))}", flush=True)


def sizes(kind):
    """Returns the flags of n-gram speculators for texts of a few hundred tokens."""
    if kind == "ngram-cache":
        return []
    if kind == "ngram-mod":
        names = {"n-match": NGRAM, "n-min": 1, "n-max": DRAFT}
    else:
        names = {"size-n": NGRAM, "size-m": DRAFT}
    return [word for name, n in names.items() for word in (f"--spec-{kind}-{name}", str(n))]


def repetitive(files):
    rows = {"plain": []}
    for kind in NGRAMS:
        # The defaults, matches of 12 tokens or more and drafts of up to 64, are too long for
        # short for that.
        rows[kind] = ["--spec-type", kind]
        if sizes(kind):
            rows[f"{kind}, {NGRAM} and {DRAFT}"] = [*rows[kind], *sizes(kind)]
    runs = files.measure(files.prompts("repetitive"), rows)
    small = [name for name in rows if "and" in name or name == "ngram-cache"]
    table(runs, "plain", lambda name, found: found >= 2 if name in small else None)


def parallel(files):
    # Repeated, because near the end fewer than four sequences remain.
    prompts = files.repeated(4)
    for name, flags in {"plain": [], **files.drafts}.items():
        rows = {f"{name}, {n} at once": [*flags, "-np", str(n)] for n in (1, 4)}
        one, four = rows
        runs = files.measure(prompts, rows)
        table(runs, one, lambda row, found: found >= 1.5 if row == four and flags else None)
        if flags:
            speeds = [statistics.median(r["drafted"] / r["draft_ms"] for r in runs[row]) for row in (one, four)]
            print(f"{'  its drafts alone':34} {1e3 * speeds[1]:9.1f} {'':7} {speeds[1] / speeds[0]:6.2f}", flush=True)


def auto(files):
    # A run of one second would have an error of a quarter.
    prompts = files.repeated(3)
    drafters = {**files.drafts, "ngram-mod": ["--spec-type", "ngram-mod"]}
    if files.drafts:
        drafters["hopeless"] = ["-md", files.hopeless()]
    print(f"{'':34} {'plain':>9} {'auto':>9} {'/pass':>7} {'ratio':>6}")
    for name, flags in drafters.items():
        for n in (None,) if name.startswith("ngram") else (3, 16):
            length = ["--spec-draft-n-max", str(n)] if n else []
            rows = {False: [], True: [*flags, *length, "--spec-draft-auto"]}
            runs, ratios = {False: [], True: []}, []
            for _ in range(files.args.rounds):
                files.wait()
                # In an order in which a change of the machine's speed affects both.
                four = [(row, files.generate(prompts, rows[row])) for row in (False, True, True, False)]
                for row, one in four:
                    runs[row].append(one)
                ratios.append(math.prod(one["speed"] ** (1 if row else -1) for row, one in four) ** 0.5)
            check_texts(one for of_row in runs.values() for one in of_row)
            found = statistics.median(ratios)
            print(f"{name + (f', at most {n}' if n else ''):34} {median(runs[False]):9.1f} {median(runs[True]):9.1f} "
                  f"{median(runs[True], 'length'):7.2f} {found:6.2f}{verdict(found >= 0.97)}", flush=True)


def break_even(files):
    """Checks that drafting is faster where a pass gains more tokens than it costs, including the drafts."""
    prompts = files.repeated(2)
    rows = {"plain": []}
    for name, flags in files.drafts.items():
        for n in FIXED:
            rows[f"{name}, {n}"] = [*flags, "--spec-draft-n-max", str(n)]
    predicted, found = {name: [] for name in rows}, {name: [] for name in rows}
    for _ in range(files.args.rounds):
        # The cost of passes is measured again, because the speed of the machine changes.
        files.wait()
        bench = json.loads(run(files.args.specrun, "bench", "-m", files.target, "-t", files.args.threads,
                               "-p", 128, "--width", 17, "-r", 31, "--spec-type", "none", "--json").stdout)
        widths = {w["n_tokens"]: w for w in bench["widths"]}
        runs = {name: files.generate(prompts, flags) for name, flags in rows.items()}
        check_texts(runs.values())
        for name, one in runs.items():
            if name == "plain":
                continue
            # Cost of a round, pass and draft, in passes over one token.
            width = widths[1 + int(name.split(", ")[1])]
            needed = width["ratio"] + one["draft_ms"] / one["drafts"] / widths[1]["pass_ms"]
            predicted[name].append(one["length"] / needed)
            found[name].append(one["speed"] / runs["plain"]["speed"])
    print(f"{'':34} {'expected':>8} {'found':>6}")
    for name in list(rows)[1:]:
        expected, ratio_found = statistics.median(predicted[name]), statistics.median(found[name])
        holds = ratio_found > 1 if expected > CLEARLY else None
        print(f"{name:34} {expected:8.2f} {ratio_found:6.2f}{verdict(holds)}", flush=True)


GOALS = {"repetitive": repetitive, "parallel": parallel, "auto": auto, "break-even": break_even}


def main():
    args = parse()
    files = Files(args)
    print(f"{args.threads} threads, {args.rounds} rounds")
    for goal in args.goals or GOALS:
        print(f"\n{goal}")
        GOALS[goal](files)


if __name__ == "__main__":
    main()
