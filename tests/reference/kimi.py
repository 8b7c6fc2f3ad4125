"""The tokenizer files of Kimi K2 in small, and the vocabulary that llama.cpp's converter makes of them.

    python3 kimi.py

Released checkpoints have no tokenizer.json: the ranks are in a file of tiktoken, and the rest is in Python code. llama.cpp's
converter runs that code; this script restates its rules. The tokens of texts are those of the tiktoken library. Weights are
those of the checkpoint `deepseek2`.
"""

import base64
import json
import random
from pathlib import Path

import tiktoken

HERE = Path(__file__).parent / "kimi"
N_VOCAB = 320
# The same number for released checkpoints.
N_SPECIAL = 256
NORMAL, CONTROL, UNUSED = 1, 3, 5
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])
MERGED = ["th", "he", "in", "er", " t", " th", " the", "an", "re", "on", "at", "en", "nd", "ti", "or", "es", " a", "te",
          "of", "ed", "is", "it", "al", "ar", "st", "to", "nt", " an", "ing", " of"]
MERGED = [text.encode() for text in MERGED] + [b"\xe4\xb8", "中".encode(), b"\xe6\x96", "文".encode(), "中文".encode()]
NAMED = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 9: "[EOT]", 27: "[PAD]"}
CASES = ["the thing and the other", "中文 and 12345 of it's", "  spaces\n\n\tand tabs ", "I'LL see THE end", "🙂 of é",
         "a中b文c", "", "x" * 9, "atinged."]


def characters():
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(others)}


CHARACTERS = characters()


def spelling(token):
    return "".join(CHARACTERS[byte] for byte in token)


def parts(ranks, token):
    """What is left of a token's bytes after all merges of a lower rank than its own."""
    pieces = [bytes([byte]) for byte in token]
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(pieces, pieces[1:])) if a + b in ranks]
        if not pairs or min(pairs)[0] >= ranks[token]:
            return pieces
        at = min(pairs)[1]
        pieces[at:at + 2] = [pieces[at] + pieces[at + 1]]


def main():
    HERE.mkdir(exist_ok=True)
    singles = [bytes([byte]) for byte in range(256)]
    random.Random(1).shuffle(singles)
    # No merges lead to the last one, because it comes before its halves would.
    tokens = singles + [b"qzq"] + MERGED
    ranks = {token: rank for rank, token in enumerate(tokens)}
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (HERE / "tiktoken.model").write_text("".join(lines))

    first = len(ranks)
    added = {str(first + i): {"content": text, "special": True} for i, text in NAMED.items()}
    config = {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]",
              "tokenizer_class": "TikTokenTokenizer", "chat_template": "{{ messages[0]['content'] }}"}
    (HERE / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")

    special = {added.get(str(i), {"content": f"<|reserved_token_{i}|>"})["content"]: i
               for i in range(first, first + N_SPECIAL)}
    by_id = {rank: spelling(token) for token, rank in ranks.items()} | {i: text for text, i in special.items()}
    split = [parts(ranks, token) for token in ranks if len(token) > 1]
    vocabulary = {
        "tokens": [by_id.get(i, f"[PAD{i}]") for i in range(N_VOCAB)],
        "token_type": [CONTROL if i in special.values() else NORMAL if i in by_id else UNUSED for i in range(N_VOCAB)],
        "merges": [" ".join(map(spelling, pieces)) for pieces in split if len(pieces) == 2],
    }
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    cases = [{"text": text, "ids": encoding.encode(text, disallowed_special=())} for text in CASES]
    expected = {"tiktoken": tiktoken.__version__, **vocabulary, "tokenizer_cases": cases}
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")
    print(first, "ordinary tokens,", len(vocabulary["merges"]), "merges")


main()
