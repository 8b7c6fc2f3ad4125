#!/usr/bin/env python3
"""Checks a server with llama-server's API and flags against the traces of this folder.

    python3 conformance/run_llama_server.py llama-server [TRACE.json ...]
    python3 conformance/run_llama_server.py 'specrun serve --spec-draft-fixed' --exact

The first argument is the program that serves a model, with its arguments. Each trace starts it on a free port of the
loopback interface, sends the prompt as token ids at temperature 0, and compares the reply:

- tokens: the generated token ids are equal
- drafted, accepted: `draft_n` and `draft_n_accepted` of the timings are equal
- logits: differences of log-probabilities from the most likely token's are within the tolerance of the trace.
  Positions for which the server returns none (llama-server: accepted drafts, and tokens that end within a
  character) are skipped; the table counts the others
- with --exact: the hash of all logits is equal (`logits_hash`, which specrun serve returns)

Prints a table as Markdown. The exit code is 1 if a trace fails. Needs nothing but Python 3.9.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

KIT = pathlib.Path(__file__).resolve().parent
START_S = 60
REQUEST_S = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command(program, path, trace, port):
    """Returns the command line that serves the model of a trace."""
    words = [*program, "-m", path.parent / trace["model"]["path"]]
    words += ["--host", "127.0.0.1", "--port", port, "-c", 512, "-np", 1, "-t", 1, "-ngl", 0]
    for draft in trace["drafts"]:
        words += ["-md", path.parent / draft["path"]]
    # A server may draft with the head of the model unless it is told not to.
    words += ["--spec-type", ",".join(trace["spec_types"]) or "none"]
    if trace["spec_types"]:
        words += ["--spec-draft-n-max", trace["n_draft_max"]]
    return [str(word) for word in words]


@contextlib.contextmanager
def serve(words, port):
    """Runs a server; yields its address once it answers."""
    url = f"http://127.0.0.1:{port}"
    env = dict(os.environ)
    folder = os.path.dirname(words[0])
    if folder:
        # Programs that were not installed find their libraries beside them.
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [folder, env.get("LD_LIBRARY_PATH")]))
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)
        try:
            end = time.monotonic() + START_S
            while not is_ready(url):
                if child.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise RuntimeError(reason(log.read().splitlines()))
                time.sleep(0.05)
            yield url
        finally:
            child.kill()
            child.wait()


def reason(lines):
    """Returns the first line of a log that names an error."""
    wrong = [line for line in lines if " E " in line or "error" in line.lower()]
    line = (wrong or lines or ["the server wrote nothing"])[0]
    return "does not start: " + line.strip()[:160]


def is_ready(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def complete(url, trace, **settings):
    body = {
        "prompt": trace["prompt"], "n_predict": trace["n_predict"], "temperature": 0, "seed": 1,
        "ignore_eos": True, "cache_prompt": False, "return_tokens": True, **settings,
    }
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=REQUEST_S) as reply:
        return json.load(reply)


def logit_distance(found, expected):
    """Returns the largest difference of the listed logits, and the number of positions that have some.

    Log-probabilities are logits minus a constant, so both are taken relative to the most likely token.
    llama-server returns no entry for tokens that end within a character, so entries are matched by token id."""
    most, n_compared = 0.0, 0
    others = iter(zip(expected["tokens"], expected["logits"]))
    for row in found:
        other = next((logits for token, logits in others if token == row["id"]), None)
        if other is None:
            break
        by_id = {top["id"]: top["logprob"] for top in row["top_logprobs"]}
        first = other["top"][0]
        if first["id"] not in by_id:
            continue
        n_compared += 1
        for top in other["top"]:
            if top["id"] in by_id:
                left = by_id[top["id"]] - by_id[first["id"]]
                most = max(most, abs(left - (top["logit"] - first["logit"])))
    return most, n_compared


def run(program, path, exact):
    """Returns the cells of a trace's row, and True if it passes."""
    trace = json.loads(path.read_text())
    expected = trace["expected"]
    port = free_port()
    try:
        with serve(command(program, path, trace, port), port) as url:
            # Log-probabilities are asked for separately, so that they cannot change the drafting.
            settings = {"logits_hash": True} if exact else {}
            plain = complete(url, trace, **settings)
            listed = complete(url, trace, n_probs=len(expected["logits"][0]["top"]))
    except (RuntimeError, OSError, urllib.error.URLError) as error:
        return [str(error)], False
    timings = plain["timings"]
    drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
    most, n_compared = logit_distance(listed.get("completion_probabilities", []), expected)
    checks = [
        (same_prefix(plain["tokens"], expected["tokens"]), f"{len(expected['tokens'])}"),
        (f"{drafted}", f"{expected['n_drafted']}"),
        (f"{accepted}", f"{expected['n_accepted']}"),
    ]
    cells = [found if found == wanted else f"**{found}, expected {wanted}**" for found, wanted in checks]
    is_near = most <= expected["tolerance"]
    distance = f"{most:.1e} at {n_compared} positions" if n_compared else "none returned"
    cells.append(distance if is_near else f"**{distance}**")
    passes = all(found == wanted for found, wanted in checks) and is_near
    if exact:
        is_same = plain.get("logits_hash") == expected["logits_hash"]
        cells[-1] += ", equal bits" if is_same else ", **other bits**"
        passes = passes and is_same
    return cells, passes


def same_prefix(found, expected):
    """Returns the number of equal tokens, up to the first difference."""
    pairs = list(zip(found, expected))
    n = next((i for i, (left, right) in enumerate(pairs) if left != right), len(pairs))
    return f"{n}" if len(found) == len(expected) else f"{n} of {len(found)}"


def main():
    parser = argparse.ArgumentParser(description="Checks a server against the traces of the conformance kit.")
    parser.add_argument("program", help="program that serves a model, such as llama-server or 'specrun serve'")
    parser.add_argument("traces", nargs="*", type=pathlib.Path, help="traces [default: all]")
    parser.add_argument("--exact", action="store_true", help="logits must be equal, bit for bit")
    args = parser.parse_args()
    program = shlex.split(args.program)
    traces = args.traces or sorted((KIT / "traces").glob("*.json"))
    print("| trace | result | tokens | drafted | accepted | largest difference of a logit |")
    print("|---|---|---|---|---|---|")
    n_passed = 0
    for path in traces:
        cells, passes = run(program, path, args.exact)
        n_passed += passes
        row = [path.stem, "pass" if passes else "**fail**", *cells]
        row += ["-"] * (6 - len(row))
        print(f"| {' | '.join(row)} |", flush=True)
    print(f"\n{n_passed} of {len(traces)} traces pass.")
    sys.exit(n_passed < len(traces))


if __name__ == "__main__":
    main()
