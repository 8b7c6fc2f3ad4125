"""Tiny random checkpoints of the Qwen family, in the form that checkpoints.py gives them.

    python3 qwen.py LLAMA_CPP [NAME ...]

Experts are stored one by one, as released checkpoints have them. Qwen3-Next gets an MTP head, which
transformers leaves out: its forward pass here is that of the trunk's attention layer, and
speculation is greedy.
"""

import json
import logging
import os
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

import checkpoints
from checkpoints import OUTTYPES, SMALL, byte_level

A_1_1 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
N_VOCAB = 320


def tokenizer_of_qwen(folder):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return byte_level(folder, N_VOCAB, [A_1_1], special, {
        "add_prefix_space": False, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    })


def follow(model):
    """After most tokens comes that of a fixed permutation, so that drafts are right at times."""
    order = torch.randperm(N_VOCAB, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        model.lm_head.weight[order] = (0.1 * embeddings).to(torch.bfloat16).float()


def one_by_one(weights, folder):
    """Experts as released checkpoints store them: a tensor for each."""
    for name in [name for name in weights if name.endswith("mlp.experts.gate_up_proj")]:
        prefix = name.removesuffix("gate_up_proj")
        gate, up = weights.pop(name).chunk(2, dim=1)
        down = weights.pop(prefix + "down_proj")
        for expert in range(len(down)):
            parts = {"gate": gate, "up": up, "down": down}
            for part, stack in parts.items():
                weights[f"{prefix}{expert}.{part}_proj.weight"] = stack[expert].contiguous()


def head_of(config):
    """An MTP head of random weights: a layer, and what joins embedding and hidden state."""
    generator = torch.Generator().manual_seed(2)
    layer = Qwen3NextDecoderLayer(config, config.layer_types.index("full_attention")).float()
    checkpoints.randomize(layer, generator)
    width = config.hidden_size
    noise = torch.randn(width, 2 * width, generator=generator) / (2 * width) ** 0.5
    own = {
        "mtp.fc.weight": 0.5 * noise + 2 * torch.eye(width, 2 * width),
        "mtp.norm.weight": 0.1 * torch.randn(width, generator=generator),
        "mtp.pre_fc_norm_embedding.weight": 0.1 * torch.randn(width, generator=generator),
        "mtp.pre_fc_norm_hidden.weight": 0.1 * torch.randn(width, generator=generator),
    }
    return layer, {name: value.to(torch.bfloat16).float() for name, value in own.items()}


def with_head(weights, folder):
    config = transformers.Qwen3NextConfig(**json.loads((folder / "config.json").read_text()))
    layer, own = head_of(config)
    own.update({f"mtp.layers.0.{name}": value for name, value in layer.state_dict().items()})
    weights.update({name: value.to(torch.bfloat16) for name, value in own.items()})
    one_by_one(weights, folder)


class Head:
    """The MTP head after a trunk."""

    def __init__(self, model):
        self.model, config = model, model.config
        self.layer, self.own = head_of(config)
        self.eps = config.rms_norm_eps

    def norm(self, x, name):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * (1 + self.own[name])

    def rows(self, tokens, hidden):
        """The normed output and the logits of each token, paired with the hidden state before."""
        embedded = self.model.model.embed_tokens(torch.tensor([tokens]))
        joined = torch.cat([
            self.norm(embedded, "mtp.pre_fc_norm_embedding.weight"),
            self.norm(hidden[None], "mtp.pre_fc_norm_hidden.weight"),
        ], dim=-1)
        x = joined @ self.own["mtp.fc.weight"].T
        n = len(tokens)
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        rotation = self.model.model.rotary_emb(x, positions)
        x = self.layer(x, position_embeddings=rotation, attention_mask=mask,
                       position_ids=positions)
        x = x[0] if isinstance(x, tuple) else x
        hidden = self.norm(x, "mtp.norm.weight")[0]
        return hidden, self.model.lm_head(hidden)


def speculate(model, head, prompt, n_max, n_predict):
    """Greedy text with drafts of the head: what is drafted, and what of it is accepted."""
    def target(tokens):
        hidden = model.model(torch.tensor([tokens])).last_hidden_state[0]
        return hidden, model.lm_head(hidden).argmax(-1).tolist()

    _, best = target(prompt)
    seen, out, n_drafted, n_accepted = list(prompt), [best[-1]], 0, 0
    while len(out) < n_predict:
        hidden, _ = target(seen)
        tokens = seen + [out[-1]]
        states = torch.cat([torch.zeros(1, hidden.shape[1]), hidden])
        draft = []
        for _ in range(min(n_max, n_predict - len(out) - 1)):
            states_out, logits = head.rows(tokens, states)
            draft.append(int(logits[-1].argmax()))
            tokens = tokens + draft[-1:]
            states = torch.cat([states, states_out[-1:]])
        _, best = target(seen + [out[-1]] + draft)
        best = best[len(seen):]
        accepted = 0
        while accepted < len(draft) and draft[accepted] == best[accepted]:
            accepted += 1
        seen += [out[-1]] + draft[:accepted]
        out += draft[:accepted] + [best[accepted]]
        n_drafted += len(draft)
        n_accepted += accepted
    return {"n_max": n_max, "n_predict": n_predict, "tokens": out[:n_predict],
            "draft_n": n_drafted, "draft_n_accepted": n_accepted}


def add_speculation(name, head_of_model):
    """What is drafted and accepted with an MTP head, added to what is known of the checkpoint."""
    folder = checkpoints.HERE / name
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    cls = getattr(transformers, checkpoints.CHECKPOINTS[name]["model"])
    model = cls(cls.config_class(**config)).float().eval()
    state = model.state_dict()
    for key, value in state.items():
        if key in weights:
            value.copy_(weights[key].float())
            continue
        prefix, part = key.rsplit(".", 1)
        stack = lambda part: torch.stack([weights[f"{prefix}.{expert}.{part}_proj.weight"].float()
                                          for expert in range(len(value))])
        joined = torch.cat([stack("gate"), stack("up")], dim=1)
        value.copy_(joined if part == "gate_up_proj" else stack("down"))
    path = folder / "logits.json"
    logits = json.loads(path.read_text())
    with torch.no_grad():
        head = head_of_model(model)
        runs = [speculate(model, head, logits["prompt"], n_max, 32) for n_max in [1, 3]]
    logits["mtp"] = {"speculation": runs}
    path.write_text(json.dumps(logits, ensure_ascii=False) + "\n")
    print(name, [(run["draft_n"], run["draft_n_accepted"]) for run in runs])


EXPERTS = dict(moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2)
MTP_MODES = {
    f"{mode}-{outtype}": ["--outtype", outtype, f"--{mode}"]
    for mode in ["mtp", "no-mtp"] for outtype in OUTTYPES if outtype != "auto"
}
IDS = dict(eos=319)

checkpoints.CHECKPOINTS.clear()
checkpoints.CHECKPOINTS.update({
    "qwen2": dict(
        model="Qwen2ForCausalLM", tokenizer=tokenizer_of_qwen, pre="qwen2", ids=IDS, adjust=follow,
        config=dict({k: v for k, v in SMALL.items() if k != "head_dim"}, vocab_size=N_VOCAB,
                    intermediate_size=96, num_hidden_layers=3)),
    "qwen3moe": dict(
        model="Qwen3MoeForCausalLM", tokenizer=tokenizer_of_qwen, pre="qwen2", ids=IDS,
        adjust=follow, store=one_by_one,
        config=dict(SMALL, **EXPERTS, vocab_size=N_VOCAB, intermediate_size=96,
                    num_hidden_layers=3, norm_topk_prob=True)),
    "qwen3next": dict(
        model="Qwen3NextForCausalLM", tokenizer=tokenizer_of_qwen, pre="qwen2", ids=IDS,
        adjust=follow, store=with_head, modes=MTP_MODES,
        config=dict(SMALL, **EXPERTS, vocab_size=N_VOCAB, intermediate_size=96,
                    num_hidden_layers=4, head_dim=32, shared_expert_intermediate_size=48,
                    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
                    linear_value_head_dim=16)),
})

if __name__ == "__main__":
    logging.disable(logging.INFO)
    os.environ["NO_LOCAL_GGUF"] = "1"
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    for name in sys.argv[2:] or checkpoints.CHECKPOINTS:
        checkpoints.make(name)
        if name == "qwen3next":
            add_speculation(name, Head)
