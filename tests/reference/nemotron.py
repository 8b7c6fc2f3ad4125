"""Tiny random checkpoints of Nemotron-H, in the form that checkpoints.py gives them.

    python3 nemotron.py LLAMA_CPP [NAME ...]

Configs have the fields of released ones, which llama.cpp's converter reads without transformers: the release that it
requires does not know the class. transformers leaves out the MTP head: its forward pass here is that of
llama.cpp, with layers of transformers.
"""

import json
import logging
import os
import sys
from importlib import import_module
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHBlock

import checkpoints
from checkpoints import write_json
from qwen import IDS, MTP_MODES, N_VOCAB, speculate, tokenizer_of_qwen

KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
PATTERNS = {"nemotronh": "M-*M-*", "nemotronhmoe": "ME*ME"}
DROPPED = ["layers_block_type", "layer_types", "mtp_layers_block_type"]
OF_EXPERTS = ["n_routed_experts", "n_shared_experts", "moe_intermediate_size",
              "moe_shared_expert_intermediate_size", "moe_latent_size", "num_experts_per_tok",
              "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob",
              "num_nextn_predict_layers", "moe_shared_expert_overlap"]


def follow(model):
    """After most tokens comes that of a fixed permutation; the states of Mamba layers change slowly."""
    order = torch.randperm(N_VOCAB, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            noise = torch.randn(weight.shape, generator=generator)
            if "embeddings" in name:
                weight.copy_((2 * noise).to(torch.bfloat16).float())
            elif name.endswith("A_log"):
                weight.copy_((0.5 * noise).to(torch.bfloat16).float())
            elif name.endswith("dt_bias"):
                weight.copy_((0.5 * noise - 1).to(torch.bfloat16).float())
            elif name.endswith((".D", "norm.weight", "norm_f.weight")):
                weight.copy_((1 + 0.1 * noise).to(torch.bfloat16).float())
        embeddings = model.model.embeddings.weight
        model.lm_head.weight[order] = (0.05 * embeddings).to(torch.bfloat16).float()


def one_by_one(weights):
    """Experts as released checkpoints store them: a tensor for each."""
    for name in [name for name in weights if name.endswith(("mixer.experts.up_proj", "mixer.experts.down_proj"))]:
        prefix, part = name.rsplit(".", 1)
        for expert, weight in enumerate(weights.pop(name)):
            weights[f"{prefix}.{expert}.{part}.weight"] = weight.contiguous()


def head_of(config):
    """An MTP head of random weights: a layer of attention, one of experts, and what joins and norms."""
    generator = torch.Generator().manual_seed(2)
    layers = [NemotronHBlock(config, PATTERNS["nemotronhmoe"].index(kind)).float() for kind in "*E"]
    for layer in layers:
        checkpoints.randomize(layer, generator)
    width = config.hidden_size
    random = lambda *shape: torch.randn(*shape, generator=generator)
    noise = random(width, 2 * width) / (2 * width) ** 0.5
    own = {
        "mtp.layers.0.eh_proj.weight": 0.5 * noise + 2 * torch.eye(width, 2 * width),
        "mtp.layers.0.enorm.weight": 1 + 0.1 * random(width),
        "mtp.layers.0.hnorm.weight": 1 + 0.1 * random(width),
        "mtp.layers.1.final_layernorm.weight": 1 + 0.1 * random(width),
    }
    return [layer.eval() for layer in layers], {
        name: value.to(torch.bfloat16).float() for name, value in own.items()}


def store(weights, folder):
    """Names, experts, head and config as released."""
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    config = transformers.NemotronHConfig(**fields)
    pattern = PATTERNS[folder.name]
    fields = {key: value for key, value in fields.items() if key not in DROPPED}
    fields.update(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern))
    if "E" in pattern:
        layers, own = head_of(config)
        for i, layer in enumerate(layers):
            own.update({f"mtp.layers.{i}.{name}": value for name, value in layer.state_dict().items()})
        weights.update({name: value.to(torch.bfloat16) for name, value in own.items()})
    else:
        fields = {key: value for key, value in fields.items() if key not in OF_EXPERTS}
    for name in [name for name in weights if name.startswith("model.")]:
        weights[name.replace("model.", "backbone.", 1)] = weights.pop(name)
    one_by_one(weights)
    for name in weights:
        if name.endswith("e_score_correction_bias"):
            weights[name] = weights[name].float()
    write_json(path, fields)


class Head:
    """The MTP head after a trunk."""

    def __init__(self, model):
        self.model = model
        self.layers, self.own = head_of(model.config)
        self.eps = model.config.layer_norm_epsilon

    def norm(self, x, name):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * self.own[f"mtp.layers.0.{name}.weight"]

    def rows(self, tokens, hidden):
        """The normed output and the logits of each token, paired with the hidden state before."""
        embedded = self.model.model.embeddings(torch.tensor([tokens]))
        joined = torch.cat([self.norm(embedded, "enorm"), self.norm(hidden[None], "hnorm")], dim=-1)
        x = joined @ self.own["mtp.layers.0.eh_proj.weight"].T
        n = len(tokens)
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        for layer in self.layers:
            x = layer(x, attention_mask=mask)
            x = x[0] if isinstance(x, tuple) else x
        weight = self.own["mtp.layers.1.final_layernorm.weight"]
        x = torch.nn.functional.layer_norm(x, weight.shape, weight, eps=self.eps)
        return x[0], self.model.lm_head(x[0])


def add_speculation(name):
    """What is drafted and accepted with the MTP head, added to what is known of the checkpoint."""
    model = transformers.NemotronHForCausalLM.from_pretrained(checkpoints.HERE / name, dtype="float32").eval()
    path = checkpoints.HERE / name / "logits.json"
    logits = json.loads(path.read_text())
    with torch.no_grad():
        head = Head(model)
        runs = [speculate(model, head, logits["prompt"], n_max, 32) for n_max in [1, 3]]
    logits["mtp"] = {"speculation": runs}
    path.write_text(json.dumps(logits, ensure_ascii=False) + "\n")
    print(name, [(run["draft_n"], run["draft_n_accepted"]) for run in runs])


CONFIG = dict(
    hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
    vocab_size=N_VOCAB, intermediate_size=96, mamba_num_heads=8, mamba_head_dim=16, n_groups=2,
    ssm_state_size=16, conv_kernel=4, chunk_size=8, tie_word_embeddings=False)
EXPERTS = dict(
    n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1,
    moe_shared_expert_intermediate_size=48, moe_latent_size=32, routed_scaling_factor=2.5, n_group=1,
    topk_group=1, norm_topk_prob=True, num_nextn_predict_layers=1)


def of_pattern(name, **more):
    return dict(model="NemotronHForCausalLM", tokenizer=tokenizer_of_qwen, pre="qwen2", ids=IDS, adjust=follow,
                store=store, config=dict(CONFIG, layers_block_type=[KINDS[kind] for kind in PATTERNS[name]]), **more)


checkpoints.CHECKPOINTS.clear()
checkpoints.CHECKPOINTS["nemotronh"] = of_pattern("nemotronh")
checkpoints.CHECKPOINTS["nemotronhmoe"] = of_pattern("nemotronhmoe", modes=MTP_MODES)
checkpoints.CHECKPOINTS["nemotronhmoe"]["config"].update(EXPERTS)


class NoConfig:
    @staticmethod
    def from_pretrained(*args, **kwargs):
        raise ValueError("the release of transformers does not know the class")


if __name__ == "__main__":
    logging.disable(logging.INFO)
    # Threads of torch do not survive the fork that runs the converter.
    torch.set_num_threads(1)
    os.environ["NO_LOCAL_GGUF"] = "1"
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import_module("conversion.base").AutoConfig = NoConfig
    for name in sys.argv[2:] or list(checkpoints.CHECKPOINTS):
        checkpoints.make(name)
        if name == "nemotronhmoe":
            add_speculation(name)
