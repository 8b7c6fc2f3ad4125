"""Tiny random checkpoints of DeepSeek V2 Lite and V3, in the form that checkpoints.py gives them.

    python3 deepseek.py LLAMA_CPP [NAME ...]

The MTP head of V3 is one more layer after the trunk, as in glm.py. llama.cpp leaves it out when it
converts this class, and keeps it in that of GLM 4.7 Flash, which has the same layers: what it makes
of the head is recorded with that class, and without it with the checkpoint's own.
"""

import importlib
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import checkpoints
from checkpoints import PROMPT, byte_level
from glm import Head, with_head
from qwen import MTP_MODES, N_VOCAB, add_speculation, follow, one_by_one

SPLITS = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]


LLM_SPLITS = [
    "[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}",
]


def tokenizer_of_deepseek(folder, splits=SPLITS):
    special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>",
               "<｜Assistant｜>"]
    return byte_level(folder, N_VOCAB, splits, special, {
        "add_bos_token": True, "add_eos_token": False, "bos_token": special[0],
        "eos_token": special[1], "pad_token": special[1],
        "tokenizer_class": "LlamaTokenizerFast",
    })


def tokenizer_of_deepseek_llm(folder):
    return tokenizer_of_deepseek(folder, LLM_SPLITS)


convert_class = checkpoints.convert


def convert(folder, pre, args, output):
    """With the head under the class that keeps it."""
    if folder.name == "deepseek2-lite" or "--no-mtp" in args:
        return convert_class(folder, pre, [arg for arg in args if arg != "--no-mtp"], output)
    deepseek = importlib.import_module("conversion.deepseek").DeepseekV2Model
    importlib.import_module("conversion.glm").Glm4MoeLiteModel.set_vocab = deepseek.set_vocab
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / folder.name
        shutil.copytree(folder, copy)
        config = json.loads((copy / "config.json").read_text())
        config["architectures"] = ["Glm4MoeLiteForCausalLM"]
        checkpoints.write_json(copy / "config.json", config)
        convert_class(copy, pre, args, output)


checkpoints.convert = convert
checkpoints.CHECKPOINTS.clear()
COMMON = dict(tokenizer=tokenizer_of_deepseek, pre="deepseek-v3", ids=dict(bos=315, eos=316),
              adjust=follow, prompt=2 * PROMPT, n_prompt=80)
SIZES = dict(vocab_size=N_VOCAB, hidden_size=64, intermediate_size=96,
             num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
             rms_norm_eps=1e-6, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
             v_head_dim=24, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=2,
             moe_intermediate_size=32, first_k_dense_replace=1, tie_word_embeddings=False)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
checkpoints.CHECKPOINTS.update({
    "deepseek2": dict(
        COMMON, model="DeepseekV3ForCausalLM", store=with_head, modes=MTP_MODES,
        config=dict(SIZES, num_hidden_layers=3, q_lora_rank=32, n_group=2, topk_group=1,
                    routed_scaling_factor=2.5, norm_topk_prob=True, num_nextn_predict_layers=1,
                    scoring_func="sigmoid", topk_method="noaux_tc",
                    rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    "deepseek2-lite": dict(
        {**COMMON, "tokenizer": tokenizer_of_deepseek_llm, "pre": "deepseek-llm"}, model="DeepseekV2ForCausalLM", store=one_by_one,
        config=dict(SIZES, num_hidden_layers=2, q_lora_rank=None, n_group=1, topk_group=1,
                    routed_scaling_factor=1.0, norm_topk_prob=False, topk_method="greedy",
                    scoring_func="softmax",
                    rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707))),
})

if __name__ == "__main__":
    logging.disable(logging.INFO)
    os.environ["NO_LOCAL_GGUF"] = "1"
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    for name in sys.argv[2:] or checkpoints.CHECKPOINTS:
        checkpoints.make(name)
        if name == "deepseek2":
            add_speculation(name, Head)
