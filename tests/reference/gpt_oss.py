"""Tiny random checkpoints of the gpt-oss family, in the form that checkpoints.py gives them: with
experts as MXFP4 blocks, and with the same experts as numbers.

    python3 gpt_oss.py LLAMA_CPP [NAME ...]
"""

import json
import logging
import os
import sys
from pathlib import Path

import torch

import checkpoints
from checkpoints import PROMPT, byte_level, write_json
from qwen import N_VOCAB, follow

SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def tokenizer_of_gpt_oss(folder):
    special = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>",
               "<|end|>", "<|message|>", "<|call|>"]
    return byte_level(folder, N_VOCAB, [SPLIT], special, {
        "bos_token": special[0], "eos_token": special[2], "pad_token": special[1],
        "tokenizer_class": "PreTrainedTokenizerFast",
    })


def is_expert(name):
    return ".mlp.experts." in name and not name.endswith("_bias")


def mxfp4(weight):
    """Codes and exponents of the rows of matrices whose rows are stored as columns."""
    rows = weight.float().transpose(-1, -2)
    blocks = rows.reshape(*rows.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
    codes = (blocks[..., None] / torch.exp2(exponent)[..., None, None] - FP4).abs().argmin(-1)
    return codes, exponent


def round_experts(model):
    """Experts as MXFP4 can say them; gates beyond the limit of the activation; sinks that matter."""
    follow(model)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if is_expert(name):
                codes, exponent = mxfp4(weight)
                value = (FP4[codes] * torch.exp2(exponent)[..., None]).flatten(-2)
                weight.copy_(value.transpose(-1, -2))
            elif name.endswith("gate_up_proj_bias"):
                weight[:, :4] = torch.tensor([9.0, 8.5, -9.0, -8.5])
            elif name.endswith("sinks"):
                weight.copy_((10 * weight).to(torch.bfloat16).float())


def as_blocks(weights, folder):
    """Experts as released checkpoints store them."""
    for name in [name for name in weights if is_expert(name)]:
        codes, exponent = mxfp4(weights.pop(name))
        codes = codes.to(torch.uint8)
        weights[name + "_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        weights[name + "_scales"] = (exponent + 127).to(torch.uint8)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    write_json(folder / "config.json", config)


COMMON = dict(model="GptOssForCausalLM", tokenizer=tokenizer_of_gpt_oss, pre="gpt-4o",
              ids=dict(bos=312, eos=314), adjust=round_experts, prompt=2 * PROMPT, n_prompt=80)
CONFIG = dict(vocab_size=N_VOCAB, hidden_size=64, intermediate_size=32, num_attention_heads=4,
              num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-5,
              num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
              rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0,
                               "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                               "original_max_position_embeddings": 64})
checkpoints.CHECKPOINTS.clear()
checkpoints.CHECKPOINTS.update({
    "gpt-oss": dict(COMMON, store=as_blocks, config=dict(CONFIG, num_hidden_layers=4)),
    "gpt-oss-bf16": dict(COMMON, config=dict(CONFIG, num_hidden_layers=2)),
})

if __name__ == "__main__":
    logging.disable(logging.INFO)
    os.environ["NO_LOCAL_GGUF"] = "1"
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    for name in sys.argv[2:] or checkpoints.CHECKPOINTS:
        checkpoints.make(name)
