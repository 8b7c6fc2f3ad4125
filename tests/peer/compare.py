"""Checks that llama.cpp loads our files and that we load its files. Started by run.sh.

usage: compare.py PEER_BIN OUR_BIN
"""

import hashlib
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ["deepseek2", "gemma3", "glm4moe", "linear-rope", "llama", "llama3-rope", "mistral",
            "mixtral", "qwen3", "qwen35", "qwen35-256", "yarn-rope"]
WITH_HEAD = ["deepseek2", "glm4moe", "qwen35", "qwen35-256"]
N_PREDICT = 24

failures = []


def check(what, holds, detail=""):
    print(("ok    " if holds else "FAIL  ") + what, detail if not holds else "", flush=True)
    if not holds:
        failures.append(what)


def run(*args):
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}\n{done.stdout}{done.stderr}")
    return done.stdout


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checkpoint(name):
    folder = ROOT / "tests/reference" / name
    return folder if folder.exists() else ROOT / "models" / name


class Peer:
    def __init__(self, folder):
        self.quantize_bin = folder / "llama-quantize"
        self.server_bin = folder / "llama-server"

    def quantize(self, source, output, ftype, *flags):
        run(self.quantize_bin, *flags, source, output, ftype, 2)

    def generate(self, model, tokens, *flags):
        """Returns the greedy continuation of llama.cpp's server, and the number of accepted draft tokens."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [self.server_bin, "-m", model, "--port", port, "--host", "127.0.0.1"]
        command += ["-c", "512", "-np", "1", "-t", "2", "-ctk", "f32", "-ctv", "f32"]
        # Without repacking, which selects kernels by the machine of the build.
        command += ["-fa", "off", "--no-warmup", "--no-repack", *flags]
        with tempfile.TemporaryFile("w+") as log:
            server = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log)
            try:
                return self._ask(server, port, tokens)
            except (OSError, RuntimeError) as error:
                log.seek(0)
                return None, f"{error}\n{log.read()[-2000:]}"
            finally:
                server.kill()
                server.wait()

    @staticmethod
    def _ask(server, port, tokens):
        body = {
            "prompt": tokens,
            "n_predict": N_PREDICT,
            "temperature": 0.0,
            "cache_prompt": False,
            "return_tokens": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        for _ in range(300):
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with {server.returncode}")
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    found = json.load(answer)
                return found["tokens"], found["timings"].get("draft_n_accepted", 0)
            except (urllib.error.HTTPError, ConnectionError, urllib.error.URLError):
                time.sleep(0.1)
        raise RuntimeError("the server does not answer")


class Ours:
    def __init__(self, folder):
        self.specconv_bin = folder / "specconv"
        self.specrun_bin = folder / "specrun"

    def specconv(self, *args):
        return json.loads(run(self.specconv_bin, *args, "--json"))

    def generate(self, model, tokens, *flags):
        ids = ",".join(map(str, tokens))
        found = run(self.specrun_bin, "generate", "-m", model, "--tokens", ids, *flags,
                    "-n", N_PREDICT, "--json")
        return json.loads(found)


def main():
    peer, ours = Peer(pathlib.Path(sys.argv[1])), Ours(pathlib.Path(sys.argv[2]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in FIXTURES:
            fixture(name, folder, peer, ours)
        for name in ["qwen35-256", "tiny-qwen35-mtp"]:
            quantized(name, folder, peer, ours)
        for name in WITH_HEAD + ["tiny-qwen35-mtp"]:
            heads(name, folder, peer, ours)
        separate_head("deepseek4-mtp", folder, peer, ours)
        drafted(folder, peer, ours)
    if failures:
        sys.exit(f"{len(failures)} checks failed: {', '.join(failures)}")
    print("all checks hold")


def prompt_of(name):
    logits = checkpoint(name) / "logits.json"
    if logits.exists():
        return json.loads(logits.read_text())["prompt"]
    return [514, 1053, 62, 1052, 1569, 285]


def fixture(name, folder, peer, ours):
    """Checks that our conversion loads in llama.cpp and gives the same text."""
    for outtype in ["f32", "bf16", "q8_0"]:
        file = folder / f"{name}-{outtype}.gguf"
        ours.specconv("convert", checkpoint(name), "-o", file, "--outtype", outtype)
        tokens, detail = peer.generate(file, prompt_of(name))
        check(f"{name} {outtype}: loads in the peer", tokens is not None, detail)
        if outtype == "f32" and tokens is not None:
            own = ours.generate(file, prompt_of(name))["tokens"]
            check(f"{name} {outtype}: same greedy text", own == tokens, f"{own} {tokens}")


def quantized(name, folder, peer, ours):
    """Checks that both quantizers write the same file, and that each program loads the other's."""
    source = folder / f"{name}-source.gguf"
    ours.specconv("convert", checkpoint(name), "-o", source, "--outtype", "f32")
    for ftype in ["Q8_0", "Q4_K_M", "Q6_K", "Q4_0", "Q5_K_S", "IQ4_XS"]:
        own, theirs = folder / f"{name}-{ftype}.gguf", folder / f"{name}-{ftype}-peer.gguf"
        ours.specconv("quantize", source, own, ftype)
        peer.quantize(source, theirs, ftype)
        check(f"{name} {ftype}: same file", sha256(own) == sha256(theirs))
        verdict = ours.specconv("inspect", theirs)["verdict"]
        check(f"{name} {ftype}: the peer's file passes inspect", verdict == "pass")
        found = ours.generate(theirs, prompt_of(name))["tokens"]
        check(f"{name} {ftype}: the peer's file runs in ours", len(found) > 0)
        tokens, detail = peer.generate(own, prompt_of(name))
        check(f"{name} {ftype}: our file runs in the peer", tokens is not None, detail)


def heads(name, folder, peer, ours):
    """Checks that bodies, sidecars and grafts load in llama.cpp, which drafts with them as with the original."""
    whole, body = folder / f"{name}-whole.gguf", folder / f"{name}-body.gguf"
    head, grafted = folder / f"mtp-{name}.gguf", folder / f"{name}-grafted.gguf"
    small = folder / f"{name}-small.gguf"
    ours.specconv("convert", checkpoint(name), "-o", whole, "--outtype", "f32")
    ours.specconv("split-mtp", whole, "--body", body, "--mtp", head)
    tokens = prompt_of(name)
    plain, detail = peer.generate(body, tokens)
    check(f"{name}: the body runs in the peer", plain is not None, detail)
    mtp = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "3"]
    for what, flags in [("inline", []), ("with the sidecar", ["-md", head])]:
        model = whole if not flags else body
        found, accepted = peer.generate(model, tokens, *flags, *mtp)
        check(f"{name} {what}: drafts in the peer", found == plain and accepted, accepted)
        own = ours.generate(model, tokens, *flags, *mtp)
        check(f"{name} {what}: same text", own["tokens"] == plain)
        same = own["counters"]["n_accepted"] == accepted
        counts = f"{own['counters']['n_accepted']} {accepted}"
        check(f"{name} {what}: as many accepted", same, counts)
    ours.specconv("quantize", body, small, "Q8_0")
    ours.specconv("graft-mtp", "--target", small, "--mtp", head, "-o", grafted)
    found, detail = peer.generate(grafted, tokens, *mtp)
    check(f"{name}: a head on a Q8_0 body drafts in the peer", found is not None and detail)


def separate_head(name, folder, peer, ours):
    """Checks a model whose head is always a sidecar, and whose matrices keep their types."""
    files = [folder / f"{name}.gguf", folder / f"mtp-{name}.gguf"]
    plain = [folder / f"{name}-plain.gguf", folder / f"mtp-{name}-plain.gguf"]
    requantize = "--allow-requantize"
    for file, f32, flags in zip(files, plain, [[], ["--mtp"]]):
        ours.specconv("convert", checkpoint(name), "-o", file, *flags)
        ours.specconv("quantize", requantize, file, f32, "F32")
        for ftype in ["Q8_0", "Q4_K_M", "Q6_K", "MXFP4_MOE"]:
            own, theirs = folder / f"{name}-{ftype}.gguf", folder / f"{name}-{ftype}-peer.gguf"
            ours.specconv("quantize", requantize, "--overwrite", file, own, ftype)
            peer.quantize(file, theirs, ftype, requantize)
            check(f"{file.stem} {ftype}: same file", sha256(own) == sha256(theirs))
    model, head = plain
    tokens = prompt_of(name)
    for n in [1, 3, 8]:
        flags = ["-md", head, "--spec-type", "draft-mtp", "--spec-draft-n-max", n]
        found, accepted = peer.generate(model, tokens, *flags)
        own = ours.generate(model, tokens, *flags)
        check(f"{name}, drafts of {n}: same text", own["tokens"] == found, accepted)
        same = own["counters"]["n_accepted"] == accepted
        counts = f"{own['counters']['n_accepted']} {accepted}"
        check(f"{name}, drafts of {n}: as many accepted", same, counts)


def drafted(folder, peer, ours):
    """Checks that the bundled draft model drafts for the bundled target in both programs."""
    target, draft = folder / "tiny-qwen35-mtp-whole.gguf", folder / "tiny-draft.gguf"
    ours.specconv("convert", checkpoint("tiny-draft"), "-o", draft, "--outtype", "f32")
    flags = ["-md", draft, "--spec-type", "draft-simple", "--spec-draft-n-max", "3"]
    tokens = prompt_of("tiny-qwen35-mtp")
    found, accepted = peer.generate(target, tokens, *flags)
    own = ours.generate(target, tokens, *flags)
    check("draft-simple: same text", own["tokens"] == found, accepted)


main()
