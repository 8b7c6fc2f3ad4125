#!/usr/bin/env python3
"""Trains models/tiny-dflash, a DFlash draft for models/tiny-qwen35-mtp.

The target continues pieces of the Python standard library (PSF-2.0) and short chats made from them. The draft learns the
tokens that the target prefers, from the outputs of three of its layers. Only CPU packages are needed:

    pip install jax optax safetensors tokenizers
    python3 models/train_dflash.py --texts texts.npz

--texts keeps the continuations between runs. The seed fixes the texts and the order of training. The weights of two machines
differ in the last bits, because the order of sums in matrix products does.
"""

import argparse
import json
import random
import re
import sysconfig
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from safetensors.flax import load_file, save_file
from tokenizers import Tokenizer

MODELS = Path(__file__).parent
TARGET = MODELS / "tiny-qwen35-mtp"
CONFIG = json.loads((TARGET / "config.json").read_text())
EPS = CONFIG["rms_norm_eps"]
EOS = CONFIG["eos_token_id"]
THETA = 10000.0

# Tokens of a text, and of the shortest and longest prompt in it.
LENGTH, PROMPT = 320, (24, 160)
# HF numbers of the tapped layers: the draft reads their outputs.
TAPS = [0, 1, 2]
BLOCK = 8
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FFN = 2, 256, 4, 2, 64, 256
MASK = CONFIG["pad_token_id"]
# Weight of the loss of a drafted token, relative to that of the token before it.
DECAY = 0.8


def rms(x, weight):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def rope(x, positions, n_rot):
    """Rotates the first n_rot dimensions of heads: x is (.., heads, dimensions), positions is (..)."""
    half = n_rot // 2
    angles = positions[..., None, None] * THETA ** (-jnp.arange(half) / half)
    a, b, rest = x[..., :half], x[..., half:n_rot], x[..., n_rot:]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def swiglu(x, weights, prefix):
    gate, up, down = (weights[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T


def linear_attention(w, x, state):
    """The gated delta rule for one token of each text."""
    conv, memory = state
    n = x.shape[0]
    window = jnp.concatenate([conv, (x @ w["in_proj_qkv.weight"].T)[:, :, None]], -1)
    mixed = jax.nn.silu((window * w["conv1d.weight"][:, 0]).sum(-1))
    q, k, v = jnp.split(mixed, [128, 256], -1)
    unit = lambda x: x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    q, k = (jnp.repeat(unit(x.reshape(n, 2, 64)), 2, 1) for x in (q, k))
    v = v.reshape(n, 4, 64)
    beta = jax.nn.sigmoid(x @ w["in_proj_b.weight"].T)
    decay = jnp.exp(-jnp.exp(w["A_log"]) * jax.nn.softplus(x @ w["in_proj_a.weight"].T + w["dt_bias"]))
    memory = memory * decay[..., None, None]
    delta = (v - jnp.einsum("nhkv,nhk->nhv", memory, k)) * beta[..., None]
    memory = memory + k[..., None] * delta[..., None, :]
    out = jnp.einsum("nhkv,nhk->nhv", memory, q / 8.0)
    gate = jax.nn.silu((x @ w["in_proj_z.weight"].T).reshape(n, 4, 64))
    out = rms(out, w["norm.weight"]) * gate
    return out.reshape(n, 256) @ w["out_proj.weight"].T, (window[:, :, 1:], memory)


def full_attention(w, x, state, position):
    """Gated attention for one token of each text."""
    keys, values = state
    n = x.shape[0]
    at = jnp.full((n,), position)
    q, gate = jnp.split((x @ w["q_proj.weight"].T).reshape(n, 4, 128), 2, -1)
    q = rope(rms(q, 1 + w["q_norm.weight"]), at, 32)
    k = rope(rms((x @ w["k_proj.weight"].T).reshape(n, 2, 64), 1 + w["k_norm.weight"]), at, 32)
    v = (x @ w["v_proj.weight"].T).reshape(n, 2, 64)
    keys = lax.dynamic_update_slice_in_dim(keys, k[:, None], position, 1)
    values = lax.dynamic_update_slice_in_dim(values, v[:, None], position, 1)
    scores = jnp.einsum("nghd,ntgd->nght", q.reshape(n, 2, 2, 64), keys) / 8.0
    scores = jnp.where(jnp.arange(LENGTH) <= position, scores, -jnp.inf)
    out = jnp.einsum("nght,ntgd->nghd", jax.nn.softmax(scores, -1), values).reshape(n, 4, 64)
    return (out * jax.nn.sigmoid(gate)).reshape(n, 256) @ w["o_proj.weight"].T, (keys, values)


def target_step(weights, token, state, position):
    """Returns the logits, the tapped rows and the new state of one token of each text."""
    x = weights["model.embed_tokens.weight"][token]
    taps, new = [], []
    for layer, kind in enumerate(CONFIG["layer_types"]):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
        part = "linear_attn." if kind == "linear_attention" else "self_attn."
        mixer = {name.removeprefix(part): w for name, w in own.items() if name.startswith(part)}
        normed = rms(x, 1 + own["input_layernorm.weight"])
        if kind == "linear_attention":
            out, held = linear_attention(mixer, normed, state[layer])
        else:
            out, held = full_attention(mixer, normed, state[layer], position)
        new.append(held)
        x = x + out
        x = x + swiglu(rms(x, 1 + own["post_attention_layernorm.weight"]), own, "mlp")
        if layer in TAPS:
            taps.append(x)
    logits = rms(x, 1 + weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T
    return logits, jnp.concatenate(taps, -1), new


@jax.jit
def continue_texts(weights, prompts, lengths, temperatures, key):
    """Returns the tokens of each text, the target's preferred token after each of them, and their tapped rows."""
    n = prompts.shape[0]
    state = [
        (jnp.zeros((n, 512, 3)), jnp.zeros((n, 4, 64, 64)))
        if kind == "linear_attention"
        else (jnp.zeros((n, LENGTH, 2, 64)),) * 2
        for kind in CONFIG["layer_types"]
    ]

    def step(carry, position):
        token, state = carry
        logits, taps, state = target_step(weights, token, state, position)
        noise = jax.random.gumbel(jax.random.fold_in(key, position), logits.shape)
        chosen = jnp.argmax(logits + temperatures[:, None] * noise, -1)
        following = prompts[:, jnp.minimum(position + 1, LENGTH - 1)]
        following = jnp.where(position + 1 < lengths, following, chosen)
        return (following, state), (token, jnp.argmax(logits, -1), taps.astype(jnp.bfloat16))

    _, texts = lax.scan(step, (prompts[:, 0], state), jnp.arange(LENGTH))
    return tuple(jnp.swapaxes(x, 0, 1) for x in texts)


def corpus_prompts(seed):
    """Yields prompts without end: pieces of source, and chats about functions."""
    rng = random.Random(seed)
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts]
    texts = [text for path in files if len(text := path.read_text("utf-8", "ignore")) > 400]
    functions = [f for text in texts for f in re.findall(r"(?m)^def \w+\(.*\n(?:(?:    .*)?\n){2,14}", text)]
    while True:
        kind = rng.random()
        if kind < 0.75:
            text = rng.choice(texts)
            lines = text[rng.choice([0, rng.randrange(len(text))]) :].split("\n", 1)
            text = lines[-1][:1200]
        else:
            code = rng.choice(functions).rstrip()
            name = re.match(r"def (\w+)", code)[1]
            words = re.findall(r"\b[a-z_]{3,}\b", code)
            request = f"Rename `{rng.choice(words)}` to `{rng.choice(words)}` in this code:\n{code}"
            if kind > 0.9:
                sentence = re.search(r'"""([A-Z][^."]*\.)', code)
                request = f"Write a Python function named `{name}`. {sentence[1] if sentence else ''}".rstrip()
            text = f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        limit = rng.randint(*PROMPT) if kind < 0.75 else PROMPT[1]
        if len(ids) >= PROMPT[0] and (kind < 0.75 or len(ids) <= limit):
            yield ids[:limit]


def make_texts(n, seed):
    weights = {
        name: w.astype(jnp.float32)
        for name, w in load_file(TARGET / "model.safetensors").items()
        if not name.startswith("mtp.")
    }
    prompts, done, at_once = corpus_prompts(seed), [], 128
    for start in range(0, n, at_once):
        began = time.time()
        ids = [next(prompts) for _ in range(at_once)]
        lengths = np.array([len(x) for x in ids], np.int32)
        padded = np.zeros((at_once, LENGTH), np.int32)
        for row, x in zip(padded, ids):
            row[: len(x)] = x
        temperatures = np.where(np.arange(at_once) % 2 == 0, 0.0, 0.5).astype(np.float32)
        key = jax.random.PRNGKey(seed + start)
        tokens, preferred, taps = map(np.asarray, continue_texts(weights, padded, lengths, temperatures, key))
        generated = np.arange(LENGTH) >= lengths[:, None]
        ended = np.cumsum(generated & (tokens == EOS), 1) - (generated & (tokens == EOS))
        done.append((tokens.astype(np.int16), preferred.astype(np.int16), ended > 0, taps.view(np.int16)))
        print(f"texts {start + at_once}/{n}: {time.time() - began:.1f} s", flush=True)
    return [np.concatenate(x) for x in zip(*done)]


def new_draft(key):
    shapes = {"fc.weight": (WIDTH, len(TAPS) * WIDTH), "hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (WIDTH,),
            prefix + "post_attention_layernorm.weight": (WIDTH,),
            prefix + "self_attn.q_proj.weight": (HEADS * HEAD, WIDTH),
            prefix + "self_attn.k_proj.weight": (KV_HEADS * HEAD, WIDTH),
            prefix + "self_attn.v_proj.weight": (KV_HEADS * HEAD, WIDTH),
            prefix + "self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
            prefix + "self_attn.q_norm.weight": (HEAD,),
            prefix + "self_attn.k_norm.weight": (HEAD,),
            prefix + "mlp.gate_proj.weight": (FFN, WIDTH),
            prefix + "mlp.up_proj.weight": (FFN, WIDTH),
            prefix + "mlp.down_proj.weight": (WIDTH, FFN),
        }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jnp.ones(shape) if len(shape) == 1 else jax.random.normal(k, shape) / shape[1] ** 0.5
        for k, (name, shape) in zip(keys, shapes.items())
    }


def draft_logits(draft, embedding, taps, tokens, anchors, sizes):
    """Returns the logits of the blocks: taps (n, t, taps * width), anchors and numbers of rows (n, blocks)."""
    n, blocks = anchors.shape
    fused = rms(taps @ draft["fc.weight"].T, draft["hidden_norm.weight"])
    past = jnp.arange(LENGTH)
    places = anchors[..., None] + jnp.arange(BLOCK)
    ids = jnp.full((n, blocks, BLOCK), MASK).at[:, :, 0].set(jnp.take_along_axis(tokens, anchors, 1))
    x = embedding[ids]
    is_before = past < anchors[:, :, None, None, None, None]
    is_row = jnp.arange(BLOCK) < sizes[:, :, None, None, None, None]
    for layer in range(LAYERS):
        w = {name.removeprefix(f"layers.{layer}."): v for name, v in draft.items()}
        k_proj, v_proj = w["self_attn.k_proj.weight"], w["self_attn.v_proj.weight"]
        heads = lambda x, projection: (x @ projection.T).reshape(*x.shape[:-1], -1, HEAD)
        key = lambda x, at: rope(rms(heads(x, k_proj), w["self_attn.k_norm.weight"]), at, HEAD)
        past_k, past_v = key(fused, jnp.broadcast_to(past, (n, LENGTH))), heads(fused, v_proj)
        normed = rms(x, w["input_layernorm.weight"])
        q = rope(rms(heads(normed, w["self_attn.q_proj.weight"]), w["self_attn.q_norm.weight"]), places, HEAD)
        q = q.reshape(n, blocks, BLOCK, KV_HEADS, HEADS // KV_HEADS, HEAD) / HEAD**0.5
        own_k, own_v = key(normed, places), heads(normed, v_proj)
        scores = jnp.einsum("nbigrd,ntgd->nbigrt", q, past_k)
        scores = jnp.where(is_before, scores, -jnp.inf)
        own = jnp.where(is_row, jnp.einsum("nbigrd,nbjgd->nbigrj", q, own_k), -jnp.inf)
        weight = jax.nn.softmax(jnp.concatenate([scores, own], -1), -1)
        out = jnp.einsum("nbigrt,ntgd->nbigrd", weight[..., :LENGTH], past_v)
        out = out + jnp.einsum("nbigrj,nbjgd->nbigrd", weight[..., LENGTH:], own_v)
        x = x + out.reshape(n, blocks, BLOCK, HEADS * HEAD) @ w["self_attn.o_proj.weight"].T
        x = x + swiglu(rms(x, w["post_attention_layernorm.weight"]), w, "mlp")
    return rms(x[:, :, 1:], draft["norm.weight"]) @ embedding.T


def block_loss(draft, embedding, texts, anchors, sizes):
    """Returns the loss, and the number of accepted tokens of each block after greedy verification."""
    tokens, preferred, ended, taps = texts
    taps = lax.bitcast_convert_type(taps, jnp.bfloat16).astype(jnp.float32)
    logits = draft_logits(draft, embedding, taps, tokens, anchors, sizes)
    at = anchors[..., None] + jnp.arange(BLOCK)
    pick = lambda x: jnp.take_along_axis(x[:, None], at, 2)
    labels = pick(preferred)[..., :-1]
    # A label counts while the text up to it is what the target itself prefers.
    follows = (pick(tokens)[..., 1:] == labels) & ~pick(ended)[..., 1:]
    reached = jnp.cumprod(jnp.concatenate([~pick(ended)[..., :1], follows[..., :-1]], -1), -1)
    weight = reached * DECAY ** jnp.arange(BLOCK - 1) * (jnp.arange(1, BLOCK) < sizes[..., None])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = (jnp.argmax(logits, -1) == labels) & (reached > 0)
    accepted = jnp.cumprod(right, -1)
    return (losses * weight).sum() / weight.sum(), (accepted.sum((0, 1)), reached.sum((0, 1)))


def train(texts, steps, seed):
    embedding = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"].astype(jnp.float32)
    draft = new_draft(jax.random.PRNGKey(seed))
    rng = np.random.default_rng(seed)
    at_once, blocks, n_held = 6, 32, 64
    rate = optax.schedules.warmup_cosine_decay_schedule(0, 1, 100, steps, 0.02)
    optimizer = optax.contrib.muon(lambda step: 0.01 * rate(step), adam_learning_rate=3e-3, adam_b2=0.99)
    state = optimizer.init(draft)
    anchors = lambda n: rng.integers(8, LENGTH - BLOCK, (n, blocks))
    # Programs run blocks that are shorter than the longest: every row sees the whole block, so both are trained.
    sizes = lambda n: np.where(rng.random((n, blocks)) < 0.5, rng.integers(2, BLOCK, (n, blocks)), BLOCK)

    @jax.jit
    def step(draft, state, texts, anchors, sizes):
        gradient, counts = jax.grad(block_loss, has_aux=True)(draft, embedding, texts, anchors, sizes)
        updates, state = optimizer.update(gradient, state, draft)
        return optax.apply_updates(draft, updates), state, counts

    measure = jax.jit(partial(block_loss, embedding=embedding))
    held, texts = [x[:n_held] for x in texts], [x[n_held:] for x in texts]
    held[:2] = (x.astype(np.int32) for x in held[:2])
    held_blocks = {"anchors": anchors(n_held), "sizes": np.full((n_held, blocks), BLOCK)}
    began = time.time()
    for i in range(steps):
        chosen = rng.integers(0, len(texts[0]), at_once)
        batch = [x[chosen] for x in texts]
        batch[:2] = (x.astype(np.int32) for x in batch[:2])
        draft, state, counts = step(draft, state, batch, anchors(at_once), sizes(at_once))
        if (i + 1) % 200 == 0 or i + 1 == steps:
            loss, (accepted, reached) = measure(draft, texts=held, **held_blocks)
            before = np.append(reached[0], accepted[:-1])
            rates = " ".join(f"{x:.3f}" for x in np.asarray(accepted) / before)
            print(f"step {i + 1}/{steps}, {time.time() - began:.0f} s: loss {loss:.3f}, acceptance {rates}", flush=True)
    return draft


def write(draft, out):
    out.mkdir(exist_ok=True)
    weights = {name: w.astype(jnp.bfloat16) for name, w in sorted(draft.items())}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": CONFIG["vocab_size"],
        "hidden_size": WIDTH,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "max_position_embeddings": CONFIG["max_position_embeddings"],
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": CONFIG["pad_token_id"],
        "dtype": "bfloat16",
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "layer_types": ["full_attention"] * LAYERS,
        "tie_word_embeddings": False,
        "rope_theta": THETA,
        "rope_scaling": None,
        "block_size": BLOCK,
        "num_target_layers": CONFIG["num_hidden_layers"],
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS},
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=Path, help="file of continued texts: read if it exists, else written")
    parser.add_argument("--n-texts", type=int, default=3072)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=MODELS / "tiny-dflash")
    args = parser.parse_args()
    if args.texts and args.texts.exists():
        with np.load(args.texts) as file:
            texts = [file[name] for name in file.files]
    else:
        texts = make_texts(args.n_texts, args.seed)
        if args.texts:
            np.savez(args.texts, *texts)
    write(train(texts, args.steps, args.seed), args.out)


if __name__ == "__main__":
    main()
