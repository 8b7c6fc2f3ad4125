#!/usr/bin/env python3
"""Reads a card of specconv card with huggingface_hub, and compares its results with a report of specrun kld.

usage: model_card.py README.md KLD.json
"""

import json
import pathlib
import sys

from huggingface_hub import ModelCard


def main():
    card_path, report_path = map(pathlib.Path, sys.argv[1:])
    card = ModelCard(card_path.read_text())
    report = json.loads(report_path.read_text())
    results = {(r.metric_type, r.metric_name): r.metric_value for r in card.data.eval_results}
    found = 0
    for model in report["models"]:
        name = pathlib.PurePath(model["model"]).name
        value = results.get(("kl_divergence", f"Mean KL divergence ({name})"))
        if value is None:
            continue
        assert isinstance(value, float), (name, value)
        assert value == model["kld"]["mean"]["value"], (name, value)
        found += 1
    assert found > 0, f"{card_path}: no divergence of {report_path}"
    # The parsed card is written and parsed again without a change.
    again = ModelCard(str(card))
    assert again.data.to_dict() == card.data.to_dict()
    print(f"{card_path}: {len(results)} results, {found} divergences equal to the report")


main()
