"""Tiny random checkpoints of DeepSeek V4, with the names and types of released ones, and what llama.cpp's converter makes of them.

    python3 deepseek4.py LLAMA_CPP [NAME ...]

`deepseek4` has FP8 weights, FP4 experts and an MTP head; `deepseek4-mtp` is the same with drafts that are often accepted, and with wider heads of the
indexer, because llama.cpp runs only multiples of 64; `deepseek4-dspark` is a DSpark draft for the former; `deepseek4-bf16` has FP4 experts and BF16
weights in two files, eleven layers whose names do not sort by number, a hash layer with biases, and no head. Configs have the fields of released ones, which
llama.cpp's converter reads without transformers. It embeds a chat template of its own if a checkpoint has none, so these have one.
"""

import json
import logging
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from safetensors.torch import load_file, save_file

import checkpoints
from checkpoints import HERE, OUTTYPES, byte_level, goldens, sha256, write_json
from qwen import speculate

N_VOCAB = 320
SPLITS = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]
MTP_MODES = {f"mtp-{outtype}": ["--mtp", "--outtype", outtype] for outtype in OUTTYPES}


def tokenizer(folder):
    special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>"]
    return byte_level(folder, N_VOCAB, SPLITS, special, {
        "add_bos_token": True, "add_eos_token": False, "bos_token": special[0], "eos_token": special[1],
        "pad_token": special[1], "tokenizer_class": "LlamaTokenizerFast",
        "chat_template": "{{ bos_token }}{% for m in messages %}<｜User｜>{{ m.content }}<｜Assistant｜>{% endfor %}",
    })


class Checkpoint:
    """The tensors of a checkpoint, by their names."""

    def __init__(self, name, config, is_fp8):
        self.config, self.is_fp8, self.tensors = config, is_fp8, {}
        self.generator = torch.Generator().manual_seed(int(sha256(name.encode())[:8], 16))

    def random(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def single(self, name, *shape):
        self.tensors[name] = 0.1 * self.random(*shape)

    def half(self, name, *shape):
        self.tensors[name] = (self.random(*shape) / shape[-1] ** 0.5).to(torch.bfloat16)

    def norm(self, name, width):
        self.tensors[name] = (1 + 0.1 * self.random(width)).to(torch.bfloat16)

    def matrix(self, name, n_rows, n_columns):
        """FP8 with a power of two for each block of 128 x 128, or BF16."""
        if not self.is_fp8:
            return self.half(f"{name}.weight", n_rows, n_columns)
        blocks = (-(-n_rows // 128), -(-n_columns // 128))
        exponents = torch.randint(116, 124, blocks, generator=self.generator, dtype=torch.uint8)
        self.tensors[f"{name}.weight"] = (8 * self.random(n_rows, n_columns)).to(torch.float8_e4m3fn)
        self.tensors[f"{name}.scale"] = exponents.view(torch.float8_e8m0fnu)

    def expert(self, name, n_rows, n_columns):
        """Pairs of four-bit floats, with a power of two for 32 elements of a row."""
        pairs = torch.randint(0, 256, (n_rows, n_columns // 2), generator=self.generator, dtype=torch.uint8)
        exponents = torch.randint(116, 124, (n_rows, n_columns // 32), generator=self.generator, dtype=torch.uint8)
        self.tensors[f"{name}.weight"] = pairs.view(torch.int8) if self.is_fp8 else pairs
        self.tensors[f"{name}.scale"] = exponents.view(torch.float8_e8m0fnu) if self.is_fp8 else exponents

    def mixer(self, name):
        n_stream = self.config["hc_mult"]
        self.single(f"{name}hc_head_fn", n_stream, n_stream * self.config["hidden_size"])
        self.single(f"{name}hc_head_base", n_stream)
        self.single(f"{name}hc_head_scale", 1)

    def compressor(self, name, width, ratio, n_embd):
        rows = 2 * width if ratio == 4 else width
        self.single(f"{name}.compressor.ape", ratio, rows)
        self.half(f"{name}.compressor.wkv.weight", rows, n_embd)
        self.half(f"{name}.compressor.wgate.weight", rows, n_embd)
        self.norm(f"{name}.compressor.norm.weight", width)

    def layer(self, prefix, ratio, is_hashed):
        c = self.config
        n_embd, n_ff, width, n_head = (c[key] for key in ["hidden_size", "moe_intermediate_size", "head_dim",
                                                         "num_attention_heads"])
        n_lora, n_group, n_out, n_stream = (c[key] for key in ["q_lora_rank", "o_groups", "o_lora_rank", "hc_mult"])
        for part in ["attn", "ffn"]:
            self.norm(f"{prefix}.{part}_norm.weight", n_embd)
            n_mix = (2 + n_stream) * n_stream
            self.single(f"{prefix}.hc_{part}_fn", n_mix, n_stream * n_embd)
            self.single(f"{prefix}.hc_{part}_base", n_mix)
            self.single(f"{prefix}.hc_{part}_scale", 3)
        attn = f"{prefix}.attn"
        self.single(f"{attn}.attn_sink", n_head)
        self.matrix(f"{attn}.wq_a", n_lora, n_embd)
        self.norm(f"{attn}.q_norm.weight", n_lora)
        self.matrix(f"{attn}.wq_b", n_head * width, n_lora)
        self.matrix(f"{attn}.wkv", width, n_embd)
        self.norm(f"{attn}.kv_norm.weight", width)
        self.matrix(f"{attn}.wo_a", n_group * n_out, n_head * width // n_group)
        self.matrix(f"{attn}.wo_b", n_embd, n_group * n_out)
        if ratio:
            self.compressor(attn, width, ratio, n_embd)
        if ratio == 4:
            n_index, index_width = c["index_n_heads"], c["index_head_dim"]
            self.matrix(f"{attn}.indexer.wq_b", n_index * index_width, n_lora)
            self.half(f"{attn}.indexer.weights_proj.weight", n_index, n_embd)
            self.compressor(f"{attn}.indexer", index_width, ratio, n_embd)
        ffn = f"{prefix}.ffn"
        n_expert = c["n_routed_experts"]
        self.half(f"{ffn}.gate.weight", n_expert, n_embd)
        if is_hashed:
            ids = torch.randint(0, n_expert, (N_VOCAB, c["num_experts_per_tok"]), generator=self.generator)
            self.tensors[f"{ffn}.gate.tid2eid"] = ids if self.is_fp8 else ids.to(torch.int32)
        if not is_hashed or not self.is_fp8:
            self.single(f"{ffn}.gate.bias", n_expert)
        if not self.is_fp8:
            self.single(f"{ffn}.gate.bias_vl", n_expert)
        for part, shape in {"w1": (n_ff, n_embd), "w2": (n_embd, n_ff), "w3": (n_ff, n_embd)}.items():
            self.matrix(f"{ffn}.shared_experts.{part}", *shape)
            for expert in range(n_expert):
                self.expert(f"{ffn}.experts.{expert}.{part}", *shape)

    def stages(self):
        """A DSpark draft, under the names of MTP heads. What belongs to no stage is in the first or the last."""
        c = self.config
        n_embd, n_stage = c["hidden_size"], c["n_mtp_layers"]
        self.half("embed.weight", N_VOCAB, n_embd)
        self.matrix("mtp.0.main_proj", n_embd, n_embd * len(c["dspark_target_layer_ids"]))
        self.norm("mtp.0.main_norm.weight", n_embd)
        for stage in range(n_stage):
            self.layer(f"mtp.{stage}", 0, False)
            self.single(f"mtp.{stage}.ffn.gate.bias_vl", c["n_routed_experts"])
        last = f"mtp.{n_stage - 1}"
        self.norm(f"{last}.norm.weight", n_embd)
        self.mixer(f"{last}.")
        rank = c["dspark_markov_rank"]
        self.half(f"{last}.markov_head.markov_w1.weight", N_VOCAB, rank)
        self.half(f"{last}.markov_head.markov_w2.weight", N_VOCAB, rank)
        self.half(f"{last}.confidence_head.proj.weight", 1, n_embd + rank)
        return self.tensors

    def build(self):
        c = self.config
        if "dspark_block_size" in c:
            return self.stages()
        n_embd = c["hidden_size"]
        self.half("embed.weight", N_VOCAB, n_embd)
        self.half("head.weight", N_VOCAB, n_embd)
        self.norm("norm.weight", n_embd)
        self.mixer("")
        n_layer = c["num_hidden_layers"]
        for layer in range(n_layer):
            self.layer(f"layers.{layer}", c["compress_ratios"][layer], layer < c["num_hash_layers"])
        for head in range(c["num_nextn_predict_layers"]):
            prefix = f"mtp.{head}"
            self.layer(prefix, 0, False)
            for name in ["enorm", "hnorm", "norm"]:
                self.norm(f"{prefix}.{name}.weight", n_embd)
            self.matrix(f"{prefix}.e_proj", n_embd, n_embd)
            self.matrix(f"{prefix}.h_proj", n_embd, n_embd)
            self.mixer(f"{prefix}.")
        return self.tensors


class Following(Checkpoint):
    """After most tokens comes that of a fixed permutation, also in the drafts of the head."""

    def stored(self, name, values):
        """FP8 with one power of two that makes most values normal numbers."""
        self.tensors[f"{name}.weight"] = (16 * values).to(torch.float8_e4m3fn)
        blocks = (-(-values.shape[0] // 128), -(-values.shape[1] // 128))
        self.tensors[f"{name}.scale"] = torch.full(blocks, 123, dtype=torch.uint8).view(torch.float8_e8m0fnu)

    def matrix(self, name, n_rows, n_columns):
        self.stored(name, self.random(n_rows, n_columns) / n_columns ** 0.5)

    def expert(self, name, n_rows, n_columns):
        super().expert(name, n_rows, n_columns)
        exponents = torch.randint(120, 123, (n_rows, n_columns // 32), generator=self.generator, dtype=torch.uint8)
        self.tensors[f"{name}.scale"] = exponents.view(torch.float8_e8m0fnu)

    def build(self):
        tensors, width = super().build(), self.config["hidden_size"]
        n_text = self.config["bos_token_id"]
        order = torch.randperm(n_text, generator=self.generator)
        embeddings = self.random(N_VOCAB, width)
        head = 0.01 * self.random(N_VOCAB, width)
        head[order] += 0.2 * embeddings[:n_text]
        tensors["embed.weight"] = (0.8 * embeddings).to(torch.bfloat16)
        tensors["head.weight"] = head.to(torch.bfloat16)
        noise = lambda: self.random(width, width) / width ** 0.5
        self.stored("mtp.0.e_proj", 2 * torch.eye(width) + 2.5 * noise())
        self.stored("mtp.0.h_proj", 2.5 * noise())
        return tensors


COMMON = dict(
    architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", attention_bias=False, attention_dropout=0.0,
    bos_token_id=315, eos_token_id=316, hidden_act="silu", vocab_size=N_VOCAB, hidden_size=32, moe_intermediate_size=32,
    num_key_value_heads=1, q_lora_rank=32, qk_rope_head_dim=16, sliding_window=8, max_position_embeddings=1024,
    rms_norm_eps=1e-6, n_shared_experts=1, norm_topk_prob=True, routed_scaling_factor=1.5, scoring_func="sqrtsoftplus",
    topk_method="noaux_tc", swiglu_limit=10.0, index_n_heads=2, index_head_dim=32, index_topk=8, hc_sinkhorn_iters=20,
    hc_eps=1e-6, compress_rope_theta=160000, rope_theta=10000, tie_word_embeddings=False, torch_dtype="bfloat16",
    rope_scaling={"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 64, "type": "yarn"})
CONFIGS = {
    "deepseek4": dict(
        COMMON, num_hidden_layers=3, num_nextn_predict_layers=1, num_hash_layers=1, compress_ratios=[0, 4, 128, 0],
        hc_mult=4, num_attention_heads=4, head_dim=64, o_groups=2, o_lora_rank=80, n_routed_experts=4,
        num_experts_per_tok=2, expert_dtype="fp4",
        quantization_config={"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                             "weight_block_size": [128, 128]}),
    "deepseek4-bf16": dict(
        COMMON, num_hidden_layers=11, num_nextn_predict_layers=0, num_hash_layers=1, compress_ratios=[0] * 9 + [4, 128],
        hc_mult=2, num_attention_heads=2, head_dim=32, o_groups=1, o_lora_rank=32, n_routed_experts=2,
        num_experts_per_tok=1, expert_dtype="fp4"),
}


CONFIGS["deepseek4-mtp"] = dict(CONFIGS["deepseek4"], hidden_size=64, index_n_heads=8, index_head_dim=128)
CONFIGS["deepseek4-dspark"] = dict(
    CONFIGS["deepseek4"], n_mtp_layers=2, dspark_block_size=5, dspark_noise_token_id=317,
    dspark_target_layer_ids=[0, 2], dspark_markov_rank=16)


def store(folder, tensors, n_file):
    if n_file == 1:
        return save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    index = {}
    for i in range(n_file):
        name = f"model-{i + 1:05}-of-{n_file:05}.safetensors"
        part = {key: tensors[key] for key in list(tensors)[i * len(tensors) // n_file:(i + 1) * len(tensors) // n_file]}
        save_file(part, folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(part, name))
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})


def with_target(name, folder, target):
    """Records a draft's file without the path of its target."""
    convert = checkpoints.convert
    target_flags = ["--target-model-dir", str(HERE / target)]
    checkpoints.convert = lambda folder, pre, args, output: convert(folder, pre, args + target_flags, output)
    checkpoints.OUTTYPES = []
    goldens(name, folder, dict(pre="deepseek-v3", modes={"dspark": ["--dspark", "--outtype", "bf16"]}))
    checkpoints.convert = convert
    path = folder / "golden.json"
    golden = json.loads(path.read_text())
    golden["target"] = target
    path.write_text(json.dumps(golden, ensure_ascii=False) + "\n")


def make(name):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    encode = None if name == "deepseek4-dspark" else tokenizer(folder)
    config, is_fp8 = CONFIGS[name], name != "deepseek4-bf16"
    if name == "deepseek4-dspark":
        write_json(folder / "config.json", config)
        store(folder, Checkpoint(name, config, is_fp8).build(), 1)
        return with_target(name, folder, "deepseek4")
    # The type of the file changes nothing.
    checkpoints.OUTTYPES = OUTTYPES if is_fp8 else ["q8_0", "auto"]
    write_json(folder / "config.json", config)
    kind = Following if name == "deepseek4-mtp" else Checkpoint
    store(folder, kind(name, config, is_fp8).build(), 1 if is_fp8 else 2)
    goldens(name, folder, dict(pre="deepseek-v3", modes=MTP_MODES if is_fp8 else {}))
    if name in ["deepseek4", "deepseek4-mtp"]:
        spec = dict(prompt=checkpoints.TEXT[:2000], n_prompt=300)
        checkpoints.logits(name, folder, encode, trunk(folder), spec)
    if name == "deepseek4-mtp":
        add_speculation(folder)


# Parts of names in checkpoints and in transformers, in the order in which they are replaced.
RENAMED = [
    (".attn.indexer.compressor.", ".attn.compressor.indexer."), (".attn.indexer.", ".attn.compressor.indexer."),
    (".indexer.weights_proj.", ".indexer.scorer.weights_proj."), (".indexer.wq_b.", ".indexer.q_b_proj."),
    (".compressor.norm.", ".compressor.kv_norm."), (".indexer.norm.", ".indexer.kv_norm."),
    (".ape", ".position_bias"), (".attn_norm.", ".input_layernorm."), (".ffn_norm.", ".post_attention_layernorm."),
    (".hc_attn_", ".attn_hc."), (".hc_ffn_", ".ffn_hc."), ("hc_head_", "hc_head.hc_"), (".attn.", ".self_attn."),
    (".ffn.", ".mlp."), (".attn_sink", ".sinks"), (".wq_a.", ".q_a_proj."), (".wq_b.", ".q_b_proj."),
    (".q_norm.", ".q_a_norm."), (".wkv.", ".kv_proj."), (".wgate.", ".gate_proj."), (".wo_a.", ".o_a_proj."),
    (".wo_b.", ".o_b_proj."), (".gate.bias", ".gate.e_score_correction_bias"), (".shared_experts.w1.", ".shared_experts.gate_proj."),
    (".shared_experts.w2.", ".shared_experts.down_proj."), (".shared_experts.w3.", ".shared_experts.up_proj.")]
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def decode(stored):
    """All tensors in single precision, rounded as the converter rounds them."""
    # In the folder of llama.cpp.
    from gguf import GGMLQuantizationType, quants
    q8_0 = GGMLQuantizationType.Q8_0
    tensors = {}
    for name, value in stored.items():
        if name.endswith(".scale"):
            continue
        scale = stored.get(name.replace(".weight", ".scale"))
        if value.dtype in (torch.int32, torch.int64):
            tensors[name] = value.long()
        elif value.dtype in (torch.int8, torch.uint8):
            pairs = value.view(torch.uint8).int()
            numbers = FP4[torch.stack([pairs & 15, pairs >> 4], dim=-1)].flatten(1)
            factor = torch.exp2(scale.view(torch.uint8).float() - 127)
            tensors[name] = numbers * factor.repeat_interleave(32, dim=1)
        elif value.dtype == torch.float8_e4m3fn:
            factor = torch.exp2(scale.view(torch.uint8).float() - 127)
            factor = factor.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
            numbers = value.float() * factor[:value.shape[0], :value.shape[1]]
            rounded = quants.dequantize(quants.quantize(numbers.numpy(), q8_0), q8_0)
            tensors[name] = torch.from_numpy(rounded)
        else:
            tensors[name] = value.float()
    return tensors


def choose_first(scorer):
    """Of equal scores, which are frequent after ReLU, the first position is chosen: ranks in place of scores."""
    forward = scorer.forward
    scorer.forward = lambda *args: -forward(*args).sort(dim=-1, descending=True, stable=True).indices.argsort().float()


def model_of(config, tensors, n_expert):
    """A model of transformers with the tensors of a checkpoint's trunk."""
    model = transformers.DeepseekV4ForCausalLM(config).float().eval()
    state, experts = {}, {}
    for name, value in tensors.items():
        for old, new in RENAMED:
            name = name.replace(old, new)
        name = {"embed.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}.get(name, f"model.{name}")
        if ".mlp.experts." in name:
            prefix, rest = name.split(".experts.")
            experts.setdefault(prefix, {})[rest] = value
            continue
        state[name] = value
    for prefix, own in experts.items():
        each = lambda part: torch.stack([own[f"{i}.{part}.weight"] for i in range(n_expert)])
        state[f"{prefix}.experts.gate_up_proj"] = torch.cat([each("w1"), each("w3")], dim=1)
        state[f"{prefix}.experts.down_proj"] = each("w2")
    model.load_state_dict(state)
    for layer in model.model.layers:
        if hasattr(layer.self_attn.compressor, "indexer"):
            choose_first(layer.self_attn.compressor.indexer.scorer)
    return model


def fields_of(folder):
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("quantization_config", None)
    return fields


def trunk(folder):
    """The model without its head, with the names of transformers."""
    fields = fields_of(folder)
    tensors = decode(load_file(folder / "model.safetensors"))
    tensors = {name: value for name, value in tensors.items() if not name.startswith("mtp.")}
    return model_of(transformers.DeepseekV4Config(**fields), tensors, fields["n_routed_experts"])


class Streams:
    """A trunk whose hidden states are all streams, one after another."""

    def __init__(self, trunk):
        self.trunk = trunk

    def model(self, tokens):
        found = []
        hook = self.trunk.model.hc_head.register_forward_pre_hook(lambda _, args: found.append(args[0]))
        self.trunk.model(tokens)
        hook.remove()
        return SimpleNamespace(last_hidden_state=found[0].flatten(-2))

    def lm_head(self, hidden):
        streams = hidden.unflatten(-1, (self.trunk.config.hc_mult, -1))[None]
        return self.trunk.lm_head(self.trunk.model.norm(self.trunk.model.hc_head(streams)))[0]


class Head:
    """The MTP head as a model of one layer, whose input is replaced."""

    def __init__(self, folder):
        fields, tensors = fields_of(folder), decode(load_file(folder / "model.safetensors"))
        fields.update(num_hidden_layers=1, num_hash_layers=0, compress_ratios=[0])
        self.own = {name.removeprefix("mtp.0."): value for name, value in tensors.items() if name.startswith("mtp.0.")}
        joining = ["enorm.weight", "hnorm.weight", "e_proj.weight", "h_proj.weight"]
        layer = {name if name.startswith(("norm", "hc_head")) else f"layers.0.{name}": value
                 for name, value in self.own.items() if name not in joining}
        shared = {name: tensors[name] for name in ["embed.weight", "head.weight"]}
        config = transformers.DeepseekV4Config(**fields)
        self.streams = Streams(model_of(config, shared | layer, fields["n_routed_experts"]))

    def norm(self, x, name):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.streams.trunk.config.rms_norm_eps)
        return x * self.own[name]

    def rows(self, tokens, hidden):
        """The streams after the layer and the logits of each token, paired with the trunk's streams before."""
        tokens, model = torch.tensor([tokens]), self.streams.trunk.model
        embedded = self.norm(model.embed_tokens(tokens), "enorm.weight") @ self.own["e_proj.weight"].T
        streams = self.norm(hidden.unflatten(-1, (model.config.hc_mult, -1)), "hnorm.weight")
        x = embedded[:, :, None] + streams[None] @ self.own["h_proj.weight"].T
        hook = model.layers[0].register_forward_pre_hook(lambda _, args: (x, *args[1:]))
        out = self.streams.model(tokens).last_hidden_state[0]
        hook.remove()
        return out, self.streams.lm_head(out)


def add_speculation(folder):
    """What is drafted and accepted with the MTP head, added to what is known of the checkpoint."""
    path = folder / "logits.json"
    logits = json.loads(path.read_text())
    with torch.no_grad():
        target, head = Streams(trunk(folder)), Head(folder)
        runs = [speculate(target, head, logits["prompt"], n_max, 64) for n_max in [1, 3, 8]]
    logits["mtp"] = {"speculation": runs}
    path.write_text(json.dumps(logits, ensure_ascii=False) + "\n")
    print(folder.name, [(run["draft_n"], run["draft_n_accepted"]) for run in runs])


class NoConfig:
    @staticmethod
    def from_pretrained(*args, **kwargs):
        raise ValueError("llama.cpp's converter adds the fields of the config itself to those of transformers")


if __name__ == "__main__":
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    os.environ["NO_LOCAL_GGUF"] = "1"
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    if not os.environ.get("WITH_TRANSFORMERS"):
        import_module("conversion.base").AutoConfig = NoConfig
    for name in sys.argv[2:] or CONFIGS:
        make(name)
