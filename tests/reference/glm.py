"""A tiny random checkpoint of the GLM 4.5 family, in the form that checkpoints.py gives them.

    python3 glm.py LLAMA_CPP

Released checkpoints have the MTP head as one more layer after the trunk, which transformers leaves
out: its forward pass here is that of the trunk's last layer, and speculation is greedy.
"""

import json
import logging
import os
import sys
from pathlib import Path

import torch
import transformers
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer

import checkpoints
from checkpoints import SMALL, byte_level
from qwen import A_1_1, MTP_MODES, N_VOCAB, add_speculation, follow, one_by_one

A_1_3 = A_1_1.replace(r"\p{N}|", r"\p{N}{1,3}|")


def tokenizer_of_glm(folder):
    special = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>",
               "<|user|>", "<|assistant|>", "<|observation|>"]
    return byte_level(folder, N_VOCAB, [A_1_3], special, {
        "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }, ignore_merges=True)


LAYERS = {"glm4_moe": Glm4MoeDecoderLayer, "deepseek_v3": DeepseekV3DecoderLayer}


def head_of(config):
    """An MTP head of random weights: a layer, and what joins embedding and hidden state."""
    generator = torch.Generator().manual_seed(2)
    layer = LAYERS[config.model_type](config, config.num_hidden_layers - 1).float()
    checkpoints.randomize(layer, generator)
    width = config.hidden_size
    random = lambda *shape: torch.randn(*shape, generator=generator)
    noise = random(width, 2 * width) / (2 * width) ** 0.5
    own = {
        "eh_proj.weight": noise + torch.eye(width, 2 * width),
        "enorm.weight": 1 + 0.1 * random(width),
        "hnorm.weight": 1 + 0.1 * random(width),
        "shared_head.norm.weight": 1 + 0.1 * random(width),
    }
    return layer.eval(), {name: value.to(torch.bfloat16).float() for name, value in own.items()}


def with_head(weights, folder):
    """The head as the next layer, with copies of the trunk's embedding and output."""
    config = transformers.AutoConfig.from_pretrained(folder)
    layer, own = head_of(config)
    own |= layer.state_dict()
    own["embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    own["shared_head.head.weight"] = weights["lm_head.weight"].clone()
    place = f"model.layers.{config.num_hidden_layers}."
    weights.update({place + name: value.to(torch.bfloat16) for name, value in own.items()})
    one_by_one(weights, folder)
    for name in weights:
        if name.endswith("e_score_correction_bias"):
            weights[name] = weights[name].float()


class Head:
    """The MTP head after a trunk."""

    def __init__(self, model):
        self.model = model
        self.layer, self.own = head_of(model.config)

    def norm(self, x, name):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.model.config.rms_norm_eps)
        return x * self.own[name]

    def rows(self, tokens, hidden):
        """The normed output and the logits of each token, paired with the hidden state before."""
        embedded = self.model.model.embed_tokens(torch.tensor([tokens]))
        joined = torch.cat([self.norm(embedded, "enorm.weight"),
                            self.norm(hidden[None], "hnorm.weight")], dim=-1)
        x = joined @ self.own["eh_proj.weight"].T
        n = len(tokens)
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        rotation = self.model.model.rotary_emb(x, positions)
        x = self.layer(x, position_embeddings=rotation, attention_mask=mask,
                       position_ids=positions)
        x = x[0] if isinstance(x, tuple) else x
        hidden = self.norm(x, "shared_head.norm.weight")[0]
        return hidden, self.model.lm_head(hidden)


checkpoints.CHECKPOINTS.clear()
checkpoints.CHECKPOINTS["glm4moe"] = dict(
    model="Glm4MoeForCausalLM", tokenizer=tokenizer_of_glm, pre="glm4", ids=dict(eos=310),
    adjust=follow, store=with_head, modes=MTP_MODES,
    config=dict(SMALL, vocab_size=N_VOCAB, intermediate_size=96, num_hidden_layers=3,
                n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
                moe_intermediate_size=32, first_k_dense_replace=1, n_group=2, topk_group=1,
                routed_scaling_factor=1.5, norm_topk_prob=True, use_qk_norm=True,
                attention_bias=True, num_nextn_predict_layers=1, tie_word_embeddings=False,
                rope_parameters={"rope_type": "default", "rope_theta": 1e6,
                                 "partial_rotary_factor": 0.5}))

if __name__ == "__main__":
    logging.disable(logging.INFO)
    os.environ["NO_LOCAL_GGUF"] = "1"
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    checkpoints.make("glm4moe")
    add_speculation("glm4moe", Head)
