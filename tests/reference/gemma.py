"""A tiny random checkpoint of Gemma 4 with experts, in the form that checkpoints.py gives them.

    python3 gemma.py LLAMA_CPP

It has the tokenizer of `gemma4`, no embeddings for each layer, and keys that are values in full attention, like the
released model with experts.
"""

import logging
import os
import shutil
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

import checkpoints
from checkpoints import HERE, SMALL

N_VOCAB = 900


def tokenizer_of_gemma4(folder):
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]:
        shutil.copyfile(HERE / "gemma4" / name, folder / name)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def adjust(model):
    """Norms and scales near one, and embeddings whose products are not all capped."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            is_factor = "norm" in name or name.endswith("scale") or name.endswith("layer_scalar")
            if is_factor:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_((1 + 0.1 * noise).to(torch.bfloat16).float())
            elif "embed_tokens" in name:
                weight.copy_((0.3 * weight).to(torch.bfloat16).float())


checkpoints.CHECKPOINTS.clear()
checkpoints.CHECKPOINTS["gemma4moe"] = dict(
    model="Gemma4ForCausalLM", tokenizer=tokenizer_of_gemma4, ids=dict(bos=2, eos=1, pad=0), adjust=adjust,
    config=dict(SMALL, vocab_size=N_VOCAB, intermediate_size=96, num_hidden_layers=4, global_head_dim=32,
                num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
                num_kv_shared_layers=0, sliding_window=8, final_logit_softcapping=30.0,
                layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
                enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=32,
                rope_parameters={
                    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                                       "partial_rotary_factor": 0.25},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}))

if __name__ == "__main__":
    logging.disable(logging.INFO)
    # Threads of torch do not survive the fork that runs the converter.
    torch.set_num_threads(1)
    os.environ["NO_LOCAL_GGUF"] = "1"
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    checkpoints.make("gemma4moe")
