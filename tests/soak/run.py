#!/usr/bin/env python3
"""Soak test of written files: kills, full disks, concurrent writers, truncated inputs.

    tests/soak/run.py target/release --minutes 60

Runs random rounds of four scenarios in a temporary folder until the time is up, then prints one line
of counts for each scenario. Every column except "rounds" must be zero; exit code 1 if one is not.

    wrong bytes   an output is neither the old file nor the complete new one
    half changed  a command failed and changed something, or succeeded and did not change all of it
    lost edits    set-metadata exited 0 and its key is absent, or failed and its key is present
    strays        hidden files that are still there after the next writing command in the folder
    signals       processes that were ended by a signal that this script did not send, or by SIGINT, SIGTERM
                  or SIGHUP without the documented exit code
    panics        processes that panicked, or exited with another code than the documented ones
"""

import argparse
import collections
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ["rounds", "wrong bytes", "half changed", "lost edits", "strays", "signals", "panics"]
POLITE = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
DEADLY = [signal.SIGKILL, signal.SIGQUIT]
OLD = b"the file that was there before"


def write_model(path, n_tensors, n_rows):
    """Writes a GGUF file of F32 matrices, large enough that writing it can be interrupted."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, 2))

    def text(value):
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    out += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    out += text("llama.block_count") + struct.pack("<II", 4, 1)
    size = n_rows * 1024 * 4
    for i in range(n_tensors):
        out += text(f"blk.0.part_{i}.weight")
        out += struct.pack("<IQQIQ", 2, 1024, n_rows, 0, i * size)
    out += bytes(-len(out) % 32)
    rng = random.Random(1)
    row = struct.pack("<4096f", *(rng.uniform(-1, 1) for _ in range(4096)))
    with open(path, "wb") as file:
        file.write(out)
        for _ in range(n_tensors):
            file.write((row * (size // len(row) + 1))[:size])


class Soak:
    def __init__(self, programs, folder, rng):
        self.specconv = programs / "specconv"
        self.specrun = programs / "specrun"
        self.folder = folder
        self.rng = rng
        self.counts = collections.defaultdict(collections.Counter)
        self.scenario = ""
        self.n_folders = 0
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        self.big = self.inputs / "big.gguf"
        write_model(self.big, 12, 256)
        self.head = self.convert("tests/reference/qwen35", "head.gguf")
        self.room = self.convert("tests/reference/llama", "room.gguf", "--reserve-header", "64K")
        self.tight = self.convert("tests/reference/llama", "tight.gguf")
        self.text = self.inputs / "text"
        self.text.write_text("one two three four five six seven " * 400)
        self.recipes = self.make_recipes()

    def convert(self, checkpoint, name, *flags):
        path = self.inputs / name
        command = [self.specconv, "convert", ROOT / checkpoint, "-o", path, "--overwrite", *flags]
        subprocess.run(command, check=True, capture_output=True)
        return path

    def make_recipes(self):
        """Returns the writing commands: their arguments ({} is the folder), the expected bytes of each output, and
    the time that the command takes undisturbed."""
        conv, run = self.specconv, self.specrun
        commands = [
            ([conv, "quantize", "--threads", "1", self.big, "{}/out.gguf", "Q4_K"], ["out.gguf"]),
            ([conv, "quantize", self.big, "{}/a-{{ftype}}.gguf", "Q4_0,Q8_0"],
             ["a-q4_0.gguf", "a-q8_0.gguf"]),
            ([conv, "quantize", self.big, "{}/out.gguf", "Q8_0", "--manifest", "{}/lines"],
             ["out.gguf", "lines"]),
            ([conv, "split", "--split-max-tensors", "4", self.big, "{}/part"],
             [f"part-0000{i}-of-00003.gguf" for i in (1, 2, 3)]),
            ([conv, "split-mtp", self.head, "--body", "{}/body.gguf", "--mtp", "{}/mtp.gguf"],
             ["body.gguf", "mtp.gguf"]),
            ([conv, "set-metadata", self.tight, "a.b=u32:1", "-o", "{}/set.gguf"], ["set.gguf"]),
            ([conv, "hash", self.big, "--manifest", "{}/lines"], ["lines"]),
            ([run, "build-lookup", "-m", self.tight, "-o", "{}/x.lookup", self.text], ["x.lookup"]),
        ]
        recipes = []
        for command, outputs in commands:
            folder = self.fresh()
            start = time.monotonic()
            subprocess.run(self.fill(command, folder), check=True, capture_output=True, cwd=folder)
            seconds = time.monotonic() - start
            # Relative names would differ from folder to folder; manifests hold the full ones.
            expected = {
                name: (folder / name).read_bytes().replace(str(folder).encode(), b"{}")
                for name in outputs
            }
            recipes.append((command, expected, seconds))
            shutil.rmtree(folder)
        return recipes

    @staticmethod
    def fill(command, folder):
        return [str(word).replace("{{", "{").replace("}}", "}").replace("{}", str(folder))
                for word in command]

    def fresh(self):
        self.n_folders += 1
        folder = self.folder / f"round{self.n_folders:06}"
        folder.mkdir()
        return folder

    def count(self, column, what, folder=None):
        self.counts[self.scenario][column] += 1
        print(f"{self.scenario}: {column}: {what}", file=sys.stderr, flush=True)

    def start(self, command, limit=None):
        def prepare():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                preexec_fn=prepare)

    def finish(self, process, sent=None, codes=(0, 2)):
        """Waits for a process and checks how it ended. Returns its exit code."""
        stderr = process.communicate()[1].decode(errors="replace")
        code = process.returncode
        allowed = set(codes)
        if sent in POLITE:
            allowed.add(128 + sent)
        if sent in DEADLY:
            allowed.add(-sent)
        if "panicked" in stderr:
            self.count("panics", stderr)
        elif code not in allowed:
            self.count("signals" if code < 0 else "panics", f"exit {code}: {stderr}")
        return code

    def stop(self, process, sent, seconds):
        """Sends a signal after that time, but not before the program has its handlers."""
        end = time.monotonic() + seconds
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                caught = int(status.split("SigCgt:")[1].split()[0], 16)
            except (OSError, IndexError):
                break
            if caught >> (signal.SIGHUP - 1) & 1:
                break
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.0005)
        process.send_signal(sent)

    def next_command(self, folder):
        """Runs a writing command in the folder, which removes the files of dead processes."""
        lines = folder / "next"
        command = [self.specconv, "hash", self.tight, "--manifest", lines]
        self.finish(self.start(command), codes=(0,))
        lines.unlink()

    def check_strays(self, folder, kept=()):
        for path in folder.iterdir():
            if path.name.startswith(".") and path.name not in kept:
                self.count("strays", path)

    def check_outputs(self, folder, expected, code, existed):
        """Checks that every output is old or new, as the exit code says; after SIGKILL or SIGQUIT either is
        correct."""
        states = set()
        for name, new in expected.items():
            path = folder / name
            found = path.read_bytes() if path.exists() else None
            if found == (OLD if existed else None):
                states.add("old")
            elif found is not None and found.replace(str(folder).encode(), b"{}") == new:
                states.add("new")
            else:
                self.count("wrong bytes", path)
        if code >= 0 and states - {"new" if code == 0 else "old"}:
            self.count("half changed", f"exit {code}, outputs {states} in {folder}")

    def prepare_outputs(self, folder, expected):
        existed = self.rng.random() < 0.5
        for name in expected if existed else ():
            (folder / name).write_bytes(OLD)
        return existed

    def kills(self):
        command, expected, seconds = self.rng.choice(self.recipes)
        folder = self.fresh()
        existed = self.prepare_outputs(folder, expected)
        resume = "quantize" in map(str, command) and self.rng.random() < 0.4
        command = self.fill(command, folder) + (["--resume"] if resume else [])
        sent = self.rng.choice(POLITE + DEADLY)
        process = self.start(command)
        self.stop(process, sent, self.rng.uniform(0, seconds * 1.3))
        code = self.finish(process, sent)
        self.check_outputs(folder, expected, code, existed)
        if resume:
            self.finish(self.start(command), codes=(0,))
            self.check_outputs(folder, expected, 0, existed)
        self.next_command(folder)
        self.check_strays(folder)
        shutil.rmtree(folder)

    def full_disks(self):
        command, expected, _ = self.rng.choice(self.recipes)
        folder = self.fresh()
        existed = self.prepare_outputs(folder, expected)
        largest = max(len(new) for new in expected.values())
        limit = self.rng.randrange(int(largest * 1.1) + 1)
        code = self.finish(self.start(self.fill(command, folder), limit))
        self.check_outputs(folder, expected, code, existed)
        # After a full disk nothing remains, even before the next command.
        self.check_strays(folder)
        shutil.rmtree(folder)

    def writers(self):
        """Several writers of the same outputs."""
        command, expected, seconds = self.rng.choice(self.recipes)
        folder = self.fresh()
        command = self.fill(command, folder)
        if "quantize" in command and self.rng.random() < 0.3:
            command.append("--resume")
        processes = [self.start(command) for _ in range(self.rng.randint(2, 3))]
        victim = self.rng.choice(processes) if self.rng.random() < 0.5 else None
        if victim:
            self.stop(victim, signal.SIGKILL, self.rng.uniform(0, seconds))
        codes = [self.finish(p, signal.SIGKILL if p is victim else None) for p in processes]
        code = 0 if 0 in codes else -1
        # The files of a killed run with --resume are for the same command.
        if "--resume" in command and (victim or code != 0):
            code = self.finish(self.start(command), codes=(0,))
        if "--resume" not in command and any(c == 2 for c in codes):
            self.count("half changed", f"a writer gave up: {codes} in {folder}")
        self.check_outputs(folder, expected, code, False)
        self.next_command(folder)
        self.check_strays(folder, kept=())
        shutil.rmtree(folder)

    def editors(self):
        """Several edits of one file, some of them killed."""
        folder = self.fresh()
        source = self.room if self.rng.random() < 0.7 else self.tight
        file = folder / "m.gguf"
        shutil.copy(source, file)
        edits = []
        for i in range(self.rng.randint(2, 4)):
            value = "v" * self.rng.randrange(2000)
            command = [self.specconv, "set-metadata", file, f"soak.key{i}=str:{value}"]
            edits.append((i, self.start(command)))
        sent = {}
        if self.rng.random() < 0.5:
            i, process = self.rng.choice(edits)
            sent[i] = self.rng.choice(POLITE + DEADLY)
            self.stop(process, sent[i], self.rng.uniform(0, 0.03))
        codes = {i: self.finish(process, sent.get(i)) for i, process in edits}
        # The next edit rolls back one that was interrupted.
        self.finish(self.start([self.specconv, "set-metadata", file, "soak.last=u32:1"]), codes=(0,))
        self.next_command(folder)
        self.check_strays(folder)
        header = file.read_bytes()[:1 << 20]
        for i, code in codes.items():
            present = f"soak.key{i}".encode() in header
            if code >= 0 and present != (code == 0):
                self.count("lost edits", f"exit {code}, key present: {present}")
            if code not in (0,) and code > 0 and i not in sent:
                self.count("lost edits", f"an editor gave up with exit {code}")
        check = subprocess.run([self.specconv, "hash", file], capture_output=True, text=True)
        expected = subprocess.run([self.specconv, "hash", source], capture_output=True, text=True)
        hashes = [[line.split()[1] for line in run.stdout.splitlines()] for run in (check, expected)]
        if check.returncode != 0 or hashes[0] != hashes[1]:
            self.count("wrong bytes", f"tensors changed in {file}")
        shutil.rmtree(folder)

    def truncated(self):
        folder = self.fresh()
        source = self.rng.choice([self.head, self.room, self.big])
        bad = folder / "bad.gguf"
        size = source.stat().st_size
        length = self.rng.choice([self.rng.randrange(size), self.rng.randrange(4096)])
        with open(source, "rb") as file:
            bad.write_bytes(file.read(length))
        command = self.rng.choice([
            [self.specconv, "inspect", bad],
            [self.specconv, "quantize", bad, folder / "out.gguf", "Q8_0"],
            [self.specconv, "set-metadata", bad, "a.b=u32:1"],
            [self.specconv, "hash", bad, "--manifest", folder / "lines"],
            [self.specrun, "generate", "-m", bad, "-p", "a", "-n", "1"],
            [self.specrun, "build-lookup", "-m", bad, "-o", folder / "x.lookup", self.text],
        ])
        self.finish(self.start(command), codes=(0, 1, 2))
        left = [path.name for path in folder.iterdir() if path != bad]
        if any(name.startswith(".") for name in left):
            self.count("strays", left)
        shutil.rmtree(folder)

    def run(self, seconds):
        scenarios = [self.kills, self.full_disks, self.writers, self.editors, self.truncated]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            scenario = self.rng.choice(scenarios)
            self.scenario = scenario.__name__.replace("_", " ")
            self.counts[self.scenario]["rounds"] += 1
            scenario()

    def report(self):
        width = max(len(name) for name in COLUMNS)
        print(" " * 12 + "".join(f"{name:>{width + 2}}" for name in COLUMNS))
        for name, counts in sorted(self.counts.items()):
            print(f"{name:12}" + "".join(f"{counts[c]:>{width + 2}}" for c in COLUMNS))
        return all(counts[c] == 0 for counts in self.counts.values() for c in COLUMNS[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path, help="folder with specconv and specrun")
    parser.add_argument("--minutes", type=float, default=60, help="how long to run [default: 60]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choices [default: 1]")
    parser.add_argument("--folder", type=Path, help="folder for the files [default: a temporary one]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        soak = Soak(args.programs.resolve(), Path(folder), random.Random(args.seed))
        soak.run(args.minutes * 60)
        sys.exit(0 if soak.report() else 1)


if __name__ == "__main__":
    main()
