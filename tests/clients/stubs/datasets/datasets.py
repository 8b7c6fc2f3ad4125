"""Stands in for the package `datasets`, from which speed_bench.py loads its prompts: the prompts of the
bundled model, by kind."""

import json
from pathlib import Path

PROMPTS = Path(__file__).resolve().parents[4] / "models/prompts.jsonl"


class Rows(list):
    """Rows of a data set, with access by column."""

    def __getitem__(self, key):
        if isinstance(key, str):
            return [row[key] for row in self]
        return super().__getitem__(key)


def get_dataset_config_names(repo):
    return ["qualitative"]


def load_dataset(repo, name, split):
    rows = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    return Rows(
        {"question_id": row["id"], "category": row["id"].rstrip("0123456789-_"), "turns": [row["prompt"]]}
        for row in rows
    )
