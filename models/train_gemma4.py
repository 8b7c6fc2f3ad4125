#!/usr/bin/env python3
"""Trains models/tiny-gemma4, a small Gemma 4, and models/tiny-gemma4-assistant, a draft that attends to its KV cache.

The target is trained as a language model on the Python standard library (PSF-2.0), then for a short time against loops. It
continues pieces of the library, half of them greedily, and the assistant learns the tokens that the target prefers, over
three chained steps. Finally, the tokens are divided into clusters of equal size, and one centroid for each cluster is trained
to choose it. Only CPU packages are needed:

    pip install torch transformers safetensors tokenizers
    python3 models/train_gemma4.py

--only assistant keeps the trained target. The seed fixes the texts and the order of training. The weights of two machines
differ in the last bits, because the order of sums in matrix products does.
"""

import argparse
import copy
import json
import math
import shutil
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import DynamicCache, Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm, apply_rotary_pos_emb

MODELS = Path(__file__).parent
REFERENCE = MODELS.parent / "tests/reference/gemma4"
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
PAD, EOS, BOS = 0, 1, 2

# Tokens of a text, and of the shortest and longest prompt in it.
LENGTH, PROMPT = 256, (24, 160)
# Every HELD_OUT-th file is for validation.
HELD_OUT = 40
# A token continues a loop if the text had the last LOOP tokens before.
LOOP = 10
CHAINED_STEPS = 3
# Weight of the loss of a drafted token, relative to that of the token before it.
DECAY = 0.8
N_CLUSTER, N_CHOSEN = 30, 8

TARGET_CONFIG = json.loads((REFERENCE / "config.json").read_text()) | {
    "global_head_dim": 64,
    "head_dim": 32,
    "hidden_size": 128,
    "intermediate_size": 256,
    "sliding_window": 64,
}
ASSISTANT_CONFIG = json.loads((REFERENCE.parent / "gemma4-assistant/config.json").read_text()) | {
    "backbone_hidden_size": TARGET_CONFIG["hidden_size"],
    "use_ordered_embeddings": True,
    "num_centroids": N_CLUSTER,
    "centroid_intermediate_top_k": N_CHOSEN,
}
# The layers of the assistant. Its heads and window are those of the target.
TEXT_CONFIG = ASSISTANT_CONFIG["text_config"]
TEXT_CONFIG |= {key: TARGET_CONFIG[key] for key in ("global_head_dim", "head_dim", "sliding_window")}
TEXT_CONFIG |= {"hidden_size": 64, "intermediate_size": 128}


def corpus():
    """Returns the tokens of the standard library for training and for validation. Each file ends with EOS."""
    tokenizer = Tokenizer.from_file(str(REFERENCE / "tokenizer.json"))
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "test", "tests", "encodings", "pydoc_data"}
    files = [path for path in sorted(root.rglob("*.py")) if not left_out & set(path.relative_to(root).parts)]
    texts = [text for path in files if len(text := path.read_text("utf-8", "ignore")) > 400]
    encoded = [x.ids + [EOS] for x in tokenizer.encode_batch(texts, add_special_tokens=False)]
    join = lambda parts: np.concatenate([np.array(x, np.int64) for x in parts])
    held = encoded[::HELD_OUT]
    return join(x for i, x in enumerate(encoded) if i % HELD_OUT), join(held)


def crops(tokens, n, length, rng):
    """Returns n random pieces of the corpus, each after BOS: (n, length)."""
    starts = rng.integers(0, len(tokens) - length, n)
    pieces = [np.append(BOS, tokens[start : start + length - 1]) for start in starts]
    return torch.from_numpy(np.stack(pieces))


def schedule(step, steps, warmup):
    """Factor on the learning rate: a linear warm-up, then half a cosine."""
    done = max(0, step - warmup) / max(1, steps - warmup)
    return min(1, (step + 1) / warmup) * (0.02 + 0.49 * (1 + math.cos(math.pi * min(1, done))))


class Trainer:
    """Muon for the matrices of layers, AdamW for other weights, with the schedule and clipped gradients."""

    def __init__(self, weights, steps, factor=1.0, warmup=20):
        weights = dict(weights)
        matrices = [w for name, w in weights.items() if w.ndim == 2 and "embed" not in name]
        others = [w for name, w in weights.items() if w.ndim != 2 or "embed" in name]
        self.weights = [*matrices, *others]
        self.optimizers = [torch.optim.AdamW(others, lr=4e-3 * factor, betas=(0.9, 0.97), weight_decay=0.0)]
        if matrices:
            self.optimizers.append(torch.optim.Muon(matrices, lr=0.02 * factor, weight_decay=0.0))
        rates = torch.optim.lr_scheduler.LambdaLR
        self.rates = [rates(optimizer, lambda step: schedule(step, steps, warmup)) for optimizer in self.optimizers]

    def step(self, loss):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        for optimizer, rate in zip(self.optimizers, self.rates):
            optimizer.step()
            optimizer.zero_grad()
            rate.step()


def new_target():
    config = Gemma4TextConfig(**copy.deepcopy(TARGET_CONFIG))
    config._attn_implementation = "sdpa"
    # One kernel for a norm: transformers has four, which take a quarter of the time.
    Gemma4RMSNorm.forward = lambda self, x: F.rms_norm(x, x.shape[-1:], getattr(self, "weight", None), self.eps)
    model = Gemma4ForCausalLM(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # The scores have no factor 1 / sqrt(head_dim), so the norms of heads have it at first.
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.fill_(weight.numel() ** -0.25)
            elif weight.ndim > 1 and "embed_tokens" not in name:
                torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return model


def language_loss(model, tokens):
    logits = model(input_ids=tokens, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def continue_prompts(model, prompts, temperatures):
    """Returns texts of LENGTH tokens: the prompts, (n, prompt length), and the target's continuations of them."""
    texts, cache, new = prompts, DynamicCache(config=model.config), prompts
    while texts.shape[1] < LENGTH:
        logits = model(input_ids=new, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        noise = -torch.empty_like(logits).exponential_().log()
        new = (logits + temperatures[:, None] * noise).argmax(-1, keepdim=True)
        texts = torch.cat([texts, new], 1)
    return texts


def loops(texts):
    """Returns a mask of the tokens that continue a loop: (n, length)."""
    windows = texts.unfold(1, LOOP, 1)
    same = (windows[:, :, None] == windows[:, None]).all(-1)
    return F.pad(same.tril(-1).any(-1), (LOOP - 1, 0))


def unlearn_loops(model, train, held, steps, seed):
    """Trains on source, and lowers the probabilities of tokens that continue loops in the target's own greedy texts."""
    rng = np.random.default_rng(seed)
    trainer, at_once = Trainer(model.named_parameters(), steps, 0.2), 64
    for i in range(steps):
        if i % 16 == 0:
            prompts = crops(train, at_once, rng.integers(*PROMPT), rng)
            texts = continue_prompts(model, prompts, torch.zeros(at_once))
            is_loop = torch.cat([loops(part) for part in texts.split(8)])
            is_loop[:, : prompts.shape[1]] = False
            share = is_loop[:, prompts.shape[1] :].float().mean()
            print(f"loops {i}/{steps}: {share:.3f} of the generated tokens", flush=True)
        chosen = torch.arange(4) + 4 * (i % 16)
        logits = model(input_ids=texts[chosen], use_cache=False).logits[:, :-1]
        p = logits.softmax(-1).gather(-1, texts[chosen][:, 1:, None])[..., 0]
        counted = is_loop[chosen][:, 1:]
        against = -(torch.log1p(-0.999 * p) * counted).sum() / counted.sum().clamp(min=50)
        trainer.step(language_loss(model, crops(train, 4, LENGTH, rng)) + against)
    with torch.no_grad():
        loss = language_loss(model, crops(held, 32, LENGTH, np.random.default_rng(0)))
    print(f"target after {steps} steps against loops: validation loss {loss:.3f}", flush=True)
    return model


def train_target(train, held, steps, seed):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = new_target()
    trainer = Trainer(model.named_parameters(), steps, warmup=60)
    held = crops(held, 32, LENGTH, np.random.default_rng(0))
    began = time.time()
    for i in range(steps):
        trainer.step(language_loss(model, crops(train, 4, LENGTH, rng)))
        if (i + 1) % 100 == 0 or i + 1 == steps:
            with torch.no_grad():
                loss = language_loss(model, held)
            print(f"target {i + 1}/{steps}, {time.time() - began:.0f} s: validation loss {loss:.3f}", flush=True)
    with torch.no_grad():
        # No text has the padding token. Its row is still zero, as in a damaged file, and is given the mean of the others.
        rows = model.model.embed_tokens_per_layer.weight
        rows[PAD] = rows[PAD + 1 :].mean(0)
    return model


def save(weights, config, out):
    """Writes a checkpoint folder with the tokenizer of the reference."""
    out.mkdir(parents=True, exist_ok=True)
    to_saved = lambda w: (w.bfloat16() if w.is_floating_point() else w).detach().contiguous()
    save_file({name: to_saved(w) for name, w in sorted(weights.items())}, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in TOKENIZER_FILES:
        shutil.copyfile(REFERENCE / name, out / name)


def save_target(model, out):
    weights = {name: w for name, w in model.state_dict().items() if name != "lm_head.weight"}
    save(weights, TARGET_CONFIG, out)
    generation = {"bos_token_id": BOS, "eos_token_id": [EOS], "pad_token_id": PAD, "do_sample": False}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load_target(folder):
    """Loads the target with the rounded weights that programs run."""
    model = new_target()
    weights = {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    return model.requires_grad_(False).eval()


def make_texts(model, train, n, seed):
    """Returns n continuations, half of them greedy, and a quarter as many pieces of source, in random order."""
    torch.manual_seed(seed)
    rng, done, at_once = np.random.default_rng(seed), [], 128
    temperatures = torch.arange(at_once) % 2 * 0.6
    began = time.time()
    for _ in range(0, n, at_once):
        prompts = crops(train, at_once, rng.integers(*PROMPT), rng)
        done.append(continue_prompts(model, prompts, temperatures))
        print(f"texts {len(done) * at_once}/{n}: {time.time() - began:.0f} s", flush=True)
    texts = torch.cat([*done, crops(train, n // 4, LENGTH, rng)])
    return texts[torch.from_numpy(rng.permutation(len(texts)))]


def rms(x, weight):
    return F.rms_norm(x, weight.shape, weight, TEXT_CONFIG["rms_norm_eps"])


def new_assistant():
    width, ffn, heads = (TEXT_CONFIG[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads"))
    backbone = ASSISTANT_CONFIG["backbone_hidden_size"]
    shapes = {
        "model.embed_tokens.weight": (TEXT_CONFIG["vocab_size"], width),
        "model.norm.weight": (width,),
        "pre_projection.weight": (width, 2 * backbone),
        "post_projection.weight": (backbone, width),
    }
    for layer, kind in enumerate(TEXT_CONFIG["layer_types"]):
        dim = TEXT_CONFIG["head_dim" if kind == "sliding_attention" else "global_head_dim"]
        own = {
            "input_layernorm": (width,),
            "self_attn.q_proj": (heads * dim, width),
            "self_attn.q_norm": (dim,),
            "self_attn.o_proj": (width, heads * dim),
            "post_attention_layernorm": (width,),
            "pre_feedforward_layernorm": (width,),
            "mlp.gate_proj": (ffn, width),
            "mlp.up_proj": (ffn, width),
            "mlp.down_proj": (width, ffn),
            "post_feedforward_layernorm": (width,),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    new = lambda shape: torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * shape[1] ** -0.5
    return {name: new(shape).requires_grad_() for name, shape in shapes.items()}


class Anchors:
    """The target's side of drafts that begin at each position of texts: p from 1 to LENGTH - CHAINED_STEPS.

    The draft of anchor p reads the token of p and the hidden state of p - 1, and attends to keys before p: a drafted token
    has none, and all its steps have position p.
    """

    @torch.no_grad()
    def __init__(self, target, texts):
        trunk = target.model(input_ids=texts, use_cache=False, return_shared_kv_states=True)
        n = texts.shape[1] - CHAINED_STEPS
        after = lambda x, step: x[:, 1 + step : 1 + step + n]
        steps = range(CHAINED_STEPS)
        logits = target.lm_head(trunk.last_hidden_state)
        logits = 30.0 * torch.tanh(logits / 30.0)
        preferred = logits.argmax(-1)
        self.hidden = trunk.last_hidden_state[:, :n]
        self.keys_values = trunk.shared_kv_states
        # Embeddings include the factor sqrt(hidden_size).
        self.inputs = [target.model.embed_tokens(after(texts, step)) for step in steps]
        self.logits = [after(logits, step) for step in steps]
        self.labels = [after(preferred, step) for step in steps]
        # A step counts while the text up to it is what the target prefers.
        self.reached = [torch.ones_like(self.labels[0], dtype=torch.bool)]
        for step in steps[1:]:
            self.reached.append(self.reached[-1] & (after(texts, step) == self.labels[step - 1]))
        positions = torch.arange(1, n + 1)
        distance = positions[:, None] - torch.arange(texts.shape[1])
        is_near = (distance > 0) & (distance < TEXT_CONFIG["sliding_window"])
        self.masks = {"full_attention": distance > 0, "sliding_attention": is_near}
        rotary = target.model.rotary_emb
        self.rope = {kind: rotary(self.hidden, positions[None], kind) for kind in self.masks}


def assistant_step(w, anchors, embedded, hidden):
    """Returns the normalised output of one step, from which logits and the hidden state of the next step are computed."""
    x = torch.cat([embedded, hidden], -1) @ w["pre_projection.weight"].T
    for layer, kind in enumerate(TEXT_CONFIG["layer_types"]):
        own = lambda name: w[f"model.layers.{layer}.{name}.weight"]
        q_norm = own("self_attn.q_norm")
        q = rms(x, own("input_layernorm")) @ own("self_attn.q_proj").T
        q = rms(q.unflatten(-1, (-1, len(q_norm))), q_norm)
        q = apply_rotary_pos_emb(q, *anchors.rope[kind], unsqueeze_dim=2).transpose(1, 2)
        k, v = anchors.keys_values[kind]
        mask = anchors.masks[kind]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=True)
        out = out.transpose(1, 2).flatten(2) @ own("self_attn.o_proj").T
        x = x + rms(out, own("post_attention_layernorm"))
        normed = rms(x, own("pre_feedforward_layernorm"))
        gate = F.gelu(normed @ own("mlp.gate_proj").T, approximate="tanh")
        out = (gate * (normed @ own("mlp.up_proj").T)) @ own("mlp.down_proj").T
        x = x + rms(out, own("post_feedforward_layernorm"))
    return rms(x, w["model.norm.weight"])


def assistant_outputs(w, anchors):
    """Returns the normalised outputs of the chained steps, each given the text's tokens."""
    hidden, outputs = anchors.hidden, []
    for embedded in anchors.inputs:
        y = assistant_step(w, anchors, embedded, hidden)
        hidden = y @ w["post_projection.weight"].T
        outputs.append(y)
    return outputs


def assistant_loss(w, anchors):
    """Cross entropy to the preferred tokens and to the target's probabilities, in equal parts."""
    total, weights = 0.0, 0.0
    for step, y in enumerate(assistant_outputs(w, anchors)):
        reached = anchors.reached[step]
        logits = y[reached] @ w["model.embed_tokens.weight"].T
        one_hot = F.one_hot(anchors.labels[step][reached], logits.shape[-1])
        wanted = 0.5 * one_hot + 0.5 * anchors.logits[step][reached].softmax(-1)
        losses = F.cross_entropy(logits, wanted, reduction="sum")
        total, weights = total + DECAY**step * losses, weights + DECAY**step * reached.sum()
    return total / weights


@torch.no_grad()
def acceptance(w, target, texts):
    """Returns the acceptance rate of each step in greedy verification, without clusters and, if there are any, with them."""
    reached, accepted = np.zeros((2, CHAINED_STEPS)), np.zeros((2, CHAINED_STEPS))
    is_clustered = "masked_embedding.centroids.weight" in w
    for part in texts.split(16):
        anchors = Anchors(target, part)
        right = [anchors.reached[0]] * 2
        for step, y in enumerate(assistant_outputs(w, anchors)):
            logits = y @ w["model.embed_tokens.weight"].T
            drafted = [logits.argmax(-1)]
            if is_clustered:
                chosen = (y @ w["masked_embedding.centroids.weight"].T).topk(N_CHOSEN).indices
                tokens = w["masked_embedding.token_ordering"].view(N_CLUSTER, -1)[chosen].flatten(-2)
                drafted.append(tokens.gather(-1, logits.gather(-1, tokens).argmax(-1, keepdim=True))[..., 0])
            for row, tokens in enumerate(drafted):
                before = right[row] & anchors.reached[step]
                right[row] = before & (tokens == anchors.labels[step])
                reached[row, step] += before.sum()
                accepted[row, step] += right[row].sum()
    rates = (accepted / np.maximum(reached, 1))[: 1 + is_clustered]
    return [" ".join(f"{x:.3f}" for x in row) for row in rates]


def train_assistant(target, texts, held, steps, seed):
    torch.manual_seed(seed)
    w = new_assistant()
    trainer = Trainer(w, steps)
    began, at_once = time.time(), 4
    for i in range(steps):
        chosen = torch.randint(len(texts), (at_once,))
        trainer.step(assistant_loss(w, Anchors(target, texts[chosen])))
        if (i + 1) % 100 == 0 or i + 1 == steps:
            rates = acceptance(w, target, held)[0]
            print(f"assistant {i + 1}/{steps}, {time.time() - began:.0f} s: acceptance {rates}", flush=True)
    # Centroids are trained for the rounded weights that programs run.
    return {name: weight.detach().bfloat16().float() for name, weight in w.items()}


def balanced_clusters(rows):
    """Divides rows into N_CLUSTER clusters of equal size by k-means. Returns the row numbers cluster by cluster."""
    size = len(rows) // N_CLUSTER
    centres = rows[torch.randperm(len(rows))[:N_CLUSTER]]
    for _ in range(20):
        # The closest pairs of a row and a centre go first; full clusters take no more rows.
        pairs = torch.cdist(rows, centres).flatten().argsort().tolist()
        members, is_free = [[] for _ in range(N_CLUSTER)], [True] * len(rows)
        for pair in pairs:
            row, cluster = divmod(pair, N_CLUSTER)
            if is_free[row] and len(members[cluster]) < size:
                members[cluster].append(row)
                is_free[row] = False
        ordering = torch.tensor(members)
        centres = rows[ordering].mean(1)
    return ordering.flatten()


def add_clusters(w, target, texts, steps, seed):
    """Adds clusters of tokens, and centroids that are trained to score the cluster of the preferred token highest."""
    torch.manual_seed(seed)
    rows = w["model.embed_tokens.weight"]
    ordering = balanced_clusters(rows)
    cluster_of = torch.empty_like(ordering).scatter_(0, ordering, torch.arange(len(rows)) * N_CLUSTER // len(rows))
    centroids = rows[ordering].view(N_CLUSTER, -1, rows.shape[1]).mean(1).requires_grad_()
    trainer = Trainer({"embedding of centroids": centroids}, steps)
    for i in range(steps):
        with torch.no_grad():
            anchors = Anchors(target, texts[torch.randint(len(texts), (6,))])
            outputs = assistant_outputs(w, anchors)
        ys = torch.cat([y[reached] for y, reached in zip(outputs, anchors.reached)])
        labels = torch.cat([x[reached] for x, reached in zip(anchors.labels, anchors.reached)])
        scores = ys @ centroids.T
        trainer.step(F.cross_entropy(scores, cluster_of[labels]))
        if (i + 1) % 100 == 0 or i + 1 == steps:
            found = (scores.topk(N_CHOSEN).indices == cluster_of[labels][:, None]).any(-1).float().mean()
            print(f"clusters {i + 1}/{steps}: {found:.4f} of the preferred tokens are in chosen clusters", flush=True)
    return w | {
        "masked_embedding.centroids.weight": centroids.detach().bfloat16().float(),
        "masked_embedding.token_ordering": ordering,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=["assistant"], help="keep the target that is in --out")
    parser.add_argument("--target-steps", type=int, default=2000)
    parser.add_argument("--loop-steps", type=int, default=128)
    parser.add_argument("--n-texts", type=int, default=512)
    parser.add_argument("--assistant-steps", type=int, default=700)
    parser.add_argument("--cluster-steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=MODELS, help="folder of both checkpoint folders")
    args = parser.parse_args()
    train, held = corpus()
    print(f"corpus: {len(train)} tokens for training, {len(held)} for validation", flush=True)
    folder = args.out / "tiny-gemma4"
    if not args.only:
        save_target(train_target(train, held, args.target_steps, args.seed), folder)
        model = load_target(folder).requires_grad_(True)
        save_target(unlearn_loops(model, train, held, args.loop_steps, args.seed + 6), folder)
    target = load_target(folder)
    texts = make_texts(target, train, args.n_texts, args.seed)
    held_texts = continue_prompts(target, crops(held, 32, 64, np.random.default_rng(0)), torch.zeros(32))
    w = train_assistant(target, texts, held_texts, args.assistant_steps, args.seed)
    assistant_weights = add_clusters(w, target, texts, args.cluster_steps, args.seed)
    rates = acceptance(assistant_weights, target, held_texts)
    print(f"acceptance on held-out texts: {rates[0]} without clusters, {rates[1]} with them", flush=True)
    scalars = {f"model.layers.{layer}.layer_scalar": torch.ones(1) for layer in range(TEXT_CONFIG["num_hidden_layers"])}
    save(assistant_weights | scalars, ASSISTANT_CONFIG, args.out / "tiny-gemma4-assistant")


if __name__ == "__main__":
    main()
