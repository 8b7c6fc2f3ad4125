"""Tiny random checkpoints with every scaling of positions, and of the Mistral family, in the form
that checkpoints.py gives them.

    python3 rope.py LLAMA_CPP [NAME ...]

Texts are longer than the context that is scaled.
"""

import json
import logging
import os
import sys
from pathlib import Path

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import checkpoints
from checkpoints import PROMPT, byte_level
from qwen import A_1_1, N_VOCAB

A_1_3 = A_1_1.replace(r"\p{N}|", r"\p{N}{1,3}|")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_of_llama3(folder):
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    return byte_level(folder, N_VOCAB, [A_1_3], special, {
        "bos_token": special[0], "eos_token": special[2],
        "tokenizer_class": "PreTrainedTokenizerFast",
    })


def tokenizer_of_mistral(folder):
    special = ["<unk>", "<s>", "</s>"]
    return byte_level(folder, N_VOCAB, [TEKKEN], special, {
        "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast",
    })


def tokenizer_of_qwen2(folder):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return byte_level(folder, N_VOCAB, [A_1_1], special, {
        "add_prefix_space": False, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    })


def follow(model):
    """After most tokens comes that of a fixed permutation, so that greedy text has clear winners."""
    order = torch.randperm(N_VOCAB, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        model.lm_head.weight[order] = (0.1 * embeddings).to(torch.bfloat16).float()


def of_mixtral(weights, folder):
    """Experts under the names of released checkpoints."""
    for name in [name for name in weights if name.endswith("mlp.experts.gate_up_proj")]:
        prefix = name.removesuffix("mlp.experts.gate_up_proj") + "block_sparse_moe."
        gate, up = weights.pop(name).chunk(2, dim=1)
        down = weights.pop(name.replace("gate_up_proj", "down_proj"))
        weights[prefix + "gate.weight"] = weights.pop(
            name.replace("experts.gate_up_proj", "gate.weight"))
        for expert in range(len(down)):
            for part, stack in {"w1": gate, "w2": down, "w3": up}.items():
                weights[f"{prefix}experts.{expert}.{part}.weight"] = stack[expert].contiguous()


BASE = dict(
    vocab_size=N_VOCAB, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
    max_position_embeddings=256, tie_word_embeddings=False)


def scaled(**scaling):
    return dict(BASE, rope_parameters={
        "rope_theta": 1e4, "original_max_position_embeddings": 64, **scaling})


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = dict(rope_type="yarn", factor=4.0)
COMMON = dict(ids=dict(bos=317, eos=319), adjust=follow, prompt=2 * PROMPT, n_prompt=80)

checkpoints.CHECKPOINTS.clear()
checkpoints.CHECKPOINTS.update({
    "llama3-rope": dict(
        COMMON, model="LlamaForCausalLM", tokenizer=tokenizer_of_llama3, pre="llama-bpe",
        config=scaled(**LLAMA3)),
    "linear-rope": dict(
        COMMON, model="LlamaForCausalLM", tokenizer=tokenizer_of_llama3, pre="llama-bpe",
        config=scaled(rope_type="linear", factor=4.0)),
    "yarn-rope": dict(
        COMMON, model="Qwen2ForCausalLM", tokenizer=tokenizer_of_qwen2, pre="qwen2",
        config={**scaled(**YARN), "head_dim": 16}),
    "mistral": dict(
        COMMON, model="MistralForCausalLM", tokenizer=tokenizer_of_mistral, pre="tekken",
        config=dict(BASE, sliding_window=None)),
    "mixtral": dict(
        COMMON, model="MixtralForCausalLM", tokenizer=tokenizer_of_mistral, pre="tekken",
        store=of_mixtral,
        config=dict(BASE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
})


def tables():
    """Frequencies of some scalings, for the test of runner/src/model/rope.rs."""
    for scaling in [
        dict(YARN, original_max_position_embeddings=64),
        dict(YARN, factor=32.0, rope_theta=150000.0, original_max_position_embeddings=4096,
             truncate=False),
        dict(YARN, factor=40.0, original_max_position_embeddings=4096, beta_fast=16.0,
             beta_slow=2.0, attention_factor=1.25),
    ]:
        config = transformers.LlamaConfig(
            **{**BASE, "rope_parameters": {"rope_theta": 1e4, **scaling}})
        frequencies, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
        print(scaling, magnitude, frequencies.tolist())


if __name__ == "__main__":
    logging.disable(logging.INFO)
    os.environ["NO_LOCAL_GGUF"] = "1"
    if sys.argv[1] == "tables":
        tables()
        sys.exit()
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    for name in sys.argv[2:] or checkpoints.CHECKPOINTS:
        checkpoints.make(name)
