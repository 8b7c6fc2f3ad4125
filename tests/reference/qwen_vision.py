"""Makes `qwen35-vision`: a prompt with an image for `qwen35`, and what transformers continues it with.

The text model is the checkpoint in `qwen35`; its vision part has random weights, as only its outputs matter. Needs
torch and transformers: `python3 qwen_vision.py`, from this folder.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer, Qwen3_5ForConditionalGeneration

HERE = Path(__file__).parent
CHECKPOINT = HERE / "qwen35"
FOLDER = HERE / "qwen35-vision"
# Patches of the image: time, height, width. Two by two are merged.
GRID = (1, 4, 6)
TEXTS = ("The picture <|vision_start|>", "<|vision_end|> shows a river. ")
N_NEW = 32


def main():
    torch.manual_seed(20261126)
    model = Qwen3_5ForConditionalGeneration.from_pretrained(CHECKPOINT, dtype=torch.float32)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    config = model.config
    vision = config.vision_config
    n_row = GRID[0] * GRID[1] * GRID[2]
    n_value = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.randn(n_row, n_value)
    grid = torch.tensor([GRID])
    n_image = n_row // vision.spatial_merge_size**2
    before, after = (tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS)
    ids = [*before, *[config.image_token_id] * n_image, *after]
    n_prompt = len(ids)

    with torch.no_grad():
        image = model.get_image_features(pixels, grid)
        image = getattr(image, "pooler_output", image)
        image = torch.cat(list(image)) if isinstance(image, (list, tuple)) else image
        margins = []
        for _ in range(N_NEW):
            tokens = torch.tensor([ids])
            kinds = (tokens == config.image_token_id).int()
            out = model(
                input_ids=tokens,
                mm_token_type_ids=kinds,
                pixel_values=pixels,
                image_grid_thw=grid,
                use_cache=False,
            )
            logits = out.logits[0]
            best = logits[-1].topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
        positions, _ = model.model.get_rope_index(
            tokens, mm_token_type_ids=kinds, image_grid_thw=grid
        )

    first = len(before)
    FOLDER.mkdir(exist_ok=True)
    np.save(FOLDER / "image.npy", image.numpy().astype(np.float32))
    expected = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "texts": TEXTS,
        "before": before,
        "positions": positions[:, 0, first : first + n_image].T.tolist(),
        "after": after,
        "new": ids[n_prompt:],
        "smallest_margin": min(margins),
        # The largest logits after each token behind the image.
        "logits": [
            {
                "position": i,
                "ids": logits[i].topk(4).indices.tolist(),
                "logits": logits[i].topk(4).values.tolist(),
            }
            for i in range(first + n_image, len(ids) - 1)
        ],
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(expected["positions"], expected["new"], expected["smallest_margin"], file=sys.stderr)


main()
