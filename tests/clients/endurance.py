"""Sends thousands of requests to `specrun serve`, a third of which are cancelled or broken off, and checks that
every text equals the one generated alone and that memory stays flat. Started by load.sh.

usage: endurance.py SPECRUN MODEL.gguf [--requests N] [--clients N] [--slots N] [--seed N]

Prints a summary; exits with 1 if a text differs, a request fails, or memory, threads or connections grow.
"""

import argparse
import asyncio
import json
import pathlib
import random
import sys
import time
from collections import Counter

from http_client import Request, body_of, events_of
from server import Server

PROMPTS = pathlib.Path(__file__).parents[2] / "models/prompts.jsonl"
PORT = 18203
N_PREDICT = 48
# Settings of texts; greedy, and sampled with seeds.
SETTINGS = [{"temperature": 0}, {"temperature": 0.8, "seed": 7}, {"temperature": 1.2, "top_k": 20, "seed": 8}]
# Growth of the resident set from the first tenth of the requests to the end.
MAX_GROWTH_MB = 8


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("specrun", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def texts():
    """Returns the request of each text: bundled prompts, and others that begin as they do, with every setting."""
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    prompts = [line["prompt"] for line in lines]
    prompts += [prompt[: 2 * len(prompt) // 3] for prompt in prompts]
    return [{"prompt": prompt, **settings} for prompt in prompts for settings in SETTINGS]


def usage(server):
    """Returns resident memory in MB, threads, and open files of a server."""
    proc = pathlib.Path(f"/proc/{server.process.pid}")
    fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]), len(list((proc / "fd").iterdir()))


class Run:
    """Requests, one after another from every client, and what became of them."""

    def __init__(self, args, alone):
        self.args, self.alone = args, alone
        self.random = random.Random(args.seed)
        self.n_started = 0
        self.kinds = Counter()
        self.n_tokens = 0

    async def client(self):
        while self.n_started < self.args.requests:
            self.n_started += 1
            await self.request()

    async def request(self):
        rng = self.random
        i = rng.randrange(len(self.alone))
        text, (tokens, content, logits_hash) = self.alone[i]
        n = rng.choice([N_PREDICT, rng.randrange(1, N_PREDICT)])
        body = {**text, "n_predict": n, "return_tokens": True, "logits_hash": True, "stream": rng.random() < 0.6,
                "cache_prompt": rng.random() < 0.7}
        if rng.random() < 0.3:
            body["speculative.n_max"] = rng.choice([0, 1, 2])
        if rng.random() < 0.1:
            body["n_probs"] = 2
        request = Request(PORT, "POST", "/completion", body)
        kind = rng.choices(["complete", "left while streaming", "left while waiting", "left at once",
                            "broken off in the body"], [66, 14, 10, 5, 5])[0]
        self.kinds[kind] += 1
        if kind == "complete":
            await request.run()
        elif kind == "left while streaming":
            n_most = rng.randrange(1, 40)
            await request.run(lambda request: request.received.count(b"data: ") >= n_most)
        elif kind == "left while waiting":
            try:
                await asyncio.wait_for(request.run(lambda _: False), rng.random() * 0.3)
            except asyncio.TimeoutError:
                pass
        else:
            if kind == "broken off in the body":
                request.sent = request.sent[: -rng.randrange(1, len(json.dumps(body)))]
            await request.run(until="sent")
        if request.received:
            self.check(request, body, kind == "complete", tokens[:n], content, logits_hash)

    def check(self, request, body, is_complete, tokens, content, logits_hash):
        """Compares what arrived with the text generated alone."""
        where = f"{json.dumps(body)}\n{body_of(request)[-2000:]!r}"
        if request.status != 200:
            sys.exit(f"status {request.status}: {where}")
        if body["stream"]:
            events = events_of(request)
            pieces = [event for event in events if not event["stop"]]
            found = [token for event in pieces for token in event["tokens"]]
            text = "".join(event["content"] for event in events)
            is_whole = bool(events) and events[-1]["stop"]
            last = events[-1] if events else {}
        else:
            is_whole = len(body_of(request)) > 0 and (is_complete or body_of(request).endswith(b"}"))
            last = json.loads(body_of(request)) if is_whole else {}
            found, text = last.get("tokens", []), last.get("content", "")
        if is_complete and not is_whole:
            sys.exit(f"incomplete: {where}")
        if found != tokens[: None if is_whole else len(found)] or not content.startswith(text):
            sys.exit(f"expected tokens {tokens}, found {found}: {where}")
        if is_whole and len(found) == N_PREDICT and (text, last["logits_hash"]) != (content, logits_hash):
            sys.exit(f"expected {content!r}, logits {logits_hash}: {where}")
        self.n_tokens += len(found)


async def main():
    args = parse()
    command = [args.specrun, "serve", "-m", args.model, "-np", args.slots, "-c", 512, "--port", PORT]
    with Server("specrun", command) as server:
        await server.ready()
        alone = []
        for text in texts():
            body = {**text, "n_predict": N_PREDICT, "return_tokens": True, "logits_hash": True,
                    "cache_prompt": False, "speculative.n_max": 0}
            reply = json.loads(body_of(await Request(PORT, "POST", "/completion", body).run()))
            alone.append((text, (reply["tokens"], reply["content"], reply["logits_hash"])))
        _, _, n_files = usage(server)

        async def is_closed():
            return usage(server)[2] <= n_files

        start = time.monotonic()
        warm_up = argparse.Namespace(**{**vars(args), "requests": args.requests // 10})
        runs = [Run(warm_up, alone), Run(args, alone)]
        used = []
        for run in runs:
            await asyncio.gather(*(run.client() for _ in range(args.clients)))
            await server.idle()
            await server.until(is_closed, f"back at {n_files} open files")
            used.append(usage(server))
        run = runs[1]
        (before, n_threads, _), (after, n_threads_after, n_files_after) = used
        print(f"{run.n_started} requests of {args.clients} clients in {time.monotonic() - start:.0f} s, "
              f"{run.n_tokens} tokens, all as generated alone")
        print(", ".join(f"{n} {kind}" for kind, n in run.kinds.most_common()))
        print(f"resident memory {before:.1f} MB after {args.requests // 10} requests, {after:.1f} MB at the end; "
              f"threads {n_threads}, {n_threads_after}; open files {n_files}, {n_files_after}")
        if after - before > MAX_GROWTH_MB or n_threads_after > n_threads:
            sys.exit("memory or threads have grown")


asyncio.run(main())
