"""Tiny random checkpoints, and what llama.cpp's converter and transformers make of them.

    python3 checkpoints.py LLAMA_CPP [NAME ...]

LLAMA_CPP is the source folder of llama.cpp b11434. Writes a folder for each name, beside this
file: the checkpoint, golden.json, logits.json and last_logits.npy, in the form that README.md
describes. Needs torch, transformers 5.23, tokenizers, sentencepiece.
"""

import hashlib
import importlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import (
    Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

HERE = Path(__file__).resolve().parent
TEXT = (HERE / "qwen35-256/text.txt").read_text()
OUTTYPES = ["f32", "f16", "bf16", "q8_0", "auto"]
N_PROMPT = 24
N_GREEDY = 32

PROMPT = "def quicksort(values):\n    \"\"\"Return a sorted copy of the 128 values, it's simple.\"\"\"\n"
CASES = [
    "Hello world", " leading space", "trailing space ", "two  spaces   three",
    "tabs\tand\nnewlines\n\n\nhere", "it's we'll I'M YOU'RE", "numbers 1 22 333 4444 3.14159",
    "for (int i = 0; i < n; ++i) { x[i] += 2 * y[i]; }", "    indented\n        more\n",
    "你好,世界。日本語のテキスト", "한국어 문장", "Привет, мир", "مرحبا بالعالم", "हिन्दी पाठ",
    "emoji 🙂👩‍👩‍👧 flags 🇩🇪", "combining e\u0301 a\u0308", "zero\u200bwidth\u00a0nbsp\u3000wide",
    "▁lower one eighth block▁", "<0x0A> is no byte", "\u0000nul", "mixed123abc456", "",
]

def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def added(text, special=True):
    return {"content": text, "lstrip": False, "normalized": not special, "rstrip": False,
            "single_word": False, "special": special}


# Tokenizers. Each writes its files and returns what the ids of a text are.

def sentencepiece_model(folder, vocab_size, dummy_prefix, user_defined):
    sink = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines() * 2), model_writer=sink, model_type="bpe",
        vocab_size=vocab_size, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, add_dummy_prefix=dummy_prefix, split_digits=True,
        allow_whitespace_only_pieces=True, user_defined_symbols=user_defined, num_threads=1,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(sink.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=sink.getvalue())


def json_of_pieces(model, special):
    """The same vocabulary as a tokenizer.json: merges in the order of the pieces they make."""
    pieces = [(model.id_to_piece(i), model.get_score(i)) for i in range(model.vocab_size())]
    vocab = {piece: i for i, (piece, _) in enumerate(pieces)}
    normal = {piece for i, (piece, _) in enumerate(pieces)
              if not (model.is_byte(i) or model.is_control(i) or model.is_unknown(i))}
    merges = []
    for piece, score in sorted((p for p in pieces if p[0] in normal), key=lambda p: -p[1]):
        splits = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        merges += [(left, right) for left, right in splits if left in normal and right in normal]
    tokenizer = Tokenizer(models.BPE(
        vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(special)
    return tokenizer


def tokenizer_of_llama(folder):
    """SentencePiece with a space put before texts, in both of its files; tokens added in every
    place that there is for them."""
    model = sentencepiece_model(folder, 500, dummy_prefix=True, user_defined=[])
    json_of_pieces(model, ["<unk>", "<s>", "</s>"]).save(str(folder / "tokenizer.json"))
    write_json(folder / "added_tokens.json", {"<extra_0>": 500, "<extra_1>": 501})
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
        "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer", "legacy": True,
        "added_tokens_decoder": {
            "0": added("<unk>"), "1": added("<s>"), "2": added("</s>"),
            "502": added("<|im_end|>"), "503": added("▁▁tool", special=False),
        },
        "chat_template": "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}",
    })
    # The tokens that are looked for by name before the model sees the text.
    return lambda text: model.encode(text)


def tokenizer_of_gemma(folder):
    """SentencePiece without a space put before texts; control tokens among the pieces."""
    symbols = ["<start_of_turn>", "<end_of_turn>", "\n\n", "\n\n\n", "<b>"]
    model = sentencepiece_model(folder, 500, dummy_prefix=False, user_defined=symbols)
    decoder = {"0": added("<unk>"), "1": added("<s>"), "2": added("</s>")}
    for symbol in symbols:
        decoder[str(model.piece_to_id(symbol))] = added(symbol, special="turn" in symbol)
    decoder["500"] = added("<image_soft_token>")
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
        "unk_token": "<unk>", "tokenizer_class": "GemmaTokenizer", "added_tokens_decoder": decoder,
    })
    return lambda text: model.encode(text)


# Checkpoints: the class of the model and what its config has beyond the defaults.

def byte_level(folder, vocab_size, splits, special, config, ignore_merges=False):
    """Byte-level BPE with these splits; words that are tokens are not merged, if told so."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    steps = [pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {token: tokenizer.token_to_id(token) for token in special}
    decoder = {str(ids[token]): added(token) for token in special}
    write_json(folder / "tokenizer_config.json", {**config, "added_tokens_decoder": decoder})
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


SMALL = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             max_position_embeddings=512, rms_norm_eps=1e-6)

CHECKPOINTS = {
    "llama-spm": dict(
        model="LlamaForCausalLM", tokenizer=tokenizer_of_llama, ids=dict(bos=1, eos=2),
        config=dict(SMALL, vocab_size=512, intermediate_size=96, num_hidden_layers=1,
                    tie_word_embeddings=False)),
    "gemma3": dict(
        model="Gemma3ForCausalLM", tokenizer=tokenizer_of_gemma, ids=dict(bos=1, eos=2),
        config=dict(SMALL, vocab_size=512, intermediate_size=96, num_hidden_layers=7,
                    num_key_value_heads=1, head_dim=32, sliding_window=8,
                    query_pre_attn_scalar=32,
                    rope_parameters={
                        "full_attention": {"rope_type": "linear", "factor": 8.0,
                                           "rope_theta": 1e6},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})),
}


def randomize(model, generator):
    """Weights that keep the size of activations from layer to layer, rounded to BF16."""
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if not weight.is_floating_point():
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                offset = 1.0 if name.endswith("norm.weight") and "Gemma" not in type(model).__name__ else 0.0
                value = offset + 0.1 * noise
            elif "embed_tokens" in name:
                value = noise
            else:
                value = noise / weight.shape[-1] ** 0.5
            weight.copy_(value.to(torch.bfloat16).float())


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def describe(path, arrays):
    """A GGUF file in the notation of golden.json."""
    import gguf
    reader = gguf.GGUFReader(path)
    kinds = gguf.GGUFValueType
    entries = []
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        value = field.contents()
        entry = {"key": key, "type": field.types[0].name.lower()}
        if field.types[0] == kinds.ARRAY:
            entry["item"] = field.types[-1].name.lower()
        if isinstance(value, list) and len(value) > 32:
            name = sha256(json.dumps(value).encode())[:16]
            arrays[name] = value
            entry.update(len=len(value), ref=name)
        else:
            entry["value"] = value
        entries.append(entry)
    tensors = [{
        "name": t.name, "shape": [int(n) for n in t.shape], "type": t.tensor_type.name,
        "offset": int(t.data_offset - reader.data_offset), "bytes": int(t.n_bytes),
        "sha256": sha256(t.data.tobytes()),
    } for t in reader.tensors]
    data = Path(path).read_bytes()
    return {"size": len(data), "sha256": sha256(data), "alignment": reader.alignment,
            "data_offset": int(reader.data_offset), "kv": entries, "tensors": tensors}


def convert(folder, pre, args, output):
    """Runs the peer's converter, which knows the pre-tokenizers of released models only."""
    base = importlib.import_module("conversion.base")
    if pre:
        base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    main = importlib.import_module("convert_hf_to_gguf").main
    sys.argv = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(output), *args]
    # What one run sets on the converter's classes must not reach the next.
    child = os.fork()
    if child == 0:
        main()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError(f"{folder.name} {args}: the converter failed")


def goldens(name, folder, spec):
    outputs, arrays = {}, {}
    modes = {outtype: ["--outtype", outtype] for outtype in OUTTYPES}
    modes.update(spec.get("modes", {}))
    with tempfile.TemporaryDirectory() as temporary:
        for mode, args in modes.items():
            path = Path(temporary) / f"{mode}.gguf"
            convert(folder, spec.get("pre"), args, path)
            outputs[mode] = {"args": args, **describe(path, arrays)}
    tool = {"llama.cpp": "b11434", "script": "convert_hf_to_gguf.py",
            "transformers": transformers.__version__}
    golden = {"checkpoint": name, "pre": spec.get("pre"), "tool": tool, "outputs": outputs,
              "refused": {}, "arrays": arrays}
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")


def logits(name, folder, encode, model, spec):
    text = spec.get("prompt", PROMPT)
    prompt = encode(text)[:spec.get("n_prompt", N_PROMPT)]
    model = model.float().eval()
    with torch.no_grad():
        rows = model(torch.tensor([prompt])).logits[0]
        top = rows.topk(8)
        tokens, margin = list(prompt), []
        for _ in range(N_GREEDY):
            last = model(torch.tensor([tokens])).logits[0, -1]
            best = last.topk(2)
            margin.append(float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
    write = {
        "checkpoint": name, "transformers": transformers.__version__, "torch": torch.__version__,
        "dtype": "float32", "prompt_text": text, "prompt": prompt,
        "top": {"ids": top.indices.tolist(), "logits": top.values.tolist()},
        "greedy": tokens[len(prompt):], "greedy_margin": {"min": min(margin)},
        "tokenizer_cases": [{"text": text, "ids": encode(text)} for text in CASES],
    }
    (folder / "logits.json").write_text(json.dumps(write, ensure_ascii=False) + "\n")
    np.save(folder / "last_logits.npy", rows[-1].numpy().astype(np.float32))
    print(name, "smallest margin", min(margin), "greedy", tokens[len(prompt):][:12])


def make(name):
    spec = CHECKPOINTS[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    encode = spec["tokenizer"](folder)
    generator = torch.Generator().manual_seed(int(sha256(name.encode())[:8], 16))
    cls = getattr(transformers, spec["model"])
    ids = {f"{role}_token_id": id for role, id in spec["ids"].items()}
    model = cls(cls.config_class(**spec["config"], **ids))
    randomize(model, generator)
    spec.get("adjust", lambda model: None)(model)
    config = model.config.to_dict()
    config["architectures"] = [spec["model"]]
    config["dtype"] = "bfloat16"
    config.pop("transformers_version", None)
    write_json(folder / "config.json", config)
    weights = {key: value.to(torch.bfloat16).contiguous() for key, value in model.state_dict().items()}
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    spec.get("store", lambda weights, folder: None)(weights, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    goldens(name, folder, spec)
    logits(name, folder, encode, model, spec)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    os.environ["NO_LOCAL_GGUF"] = "1"
    llama_cpp = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    for name in sys.argv[2:] or CHECKPOINTS:
        make(name)
