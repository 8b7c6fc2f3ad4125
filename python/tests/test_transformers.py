"""Files as transformers reads them: configuration and vocabulary are those of the checkpoint."""

import json

import pytest
import transformers.modeling_gguf_pytorch_utils as theirs
from test_gguf import checkpoints

import specconv

# Fields of config.json that the metadata of every architecture gives back.
FIELDS = {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "vocab_size",
}  # fmt: skip


def read(checkpoint, folder):
    """Converts a checkpoint and reads the file; the reason if one of both refuses."""
    path = folder / f"{checkpoint.name}.gguf"
    try:
        specconv.convert(checkpoint, path)
        return path, theirs.load_gguf_checkpoint(str(path))
    except specconv.Error:
        return "drafts need their target"
    except ValueError as error:
        assert str(error).endswith("is not supported yet.")
        return "no such architecture in transformers"
    except TypeError as error:
        assert checkpoint.name.startswith("gpt-oss"), error
        return "RoPE scaling of gpt-oss"


def expected_value(config, field):
    """The value of a field of config.json: a list if a layer has one of its own."""
    layers = config.get("per_layer_config", {})
    if not any(field in layer for layer in layers.values()):
        return config[field]
    n_layer = config["num_hidden_layers"]
    return [layers.get(str(i), {}).get(field, config[field]) for i in range(n_layer)]


def test_files_are_read_as_by_transformers(tmp_path, monkeypatch):
    # Only tensors need PyTorch, which is large.
    monkeypatch.setattr(theirs, "is_torch_available", lambda: True)
    n_read = 0
    for checkpoint in checkpoints():
        found = read(checkpoint, tmp_path)
        if isinstance(found, str):
            continue
        n_read += 1
        path, parameters = found
        expected = json.loads((checkpoint / "config.json").read_text())
        expected = expected.get("text_config", expected)
        config = parameters["config"]
        assert len(FIELDS & set(config)) >= 7, checkpoint.name
        for field in FIELDS & set(config) & set(expected):
            value = expected_value(expected, field)
            assert config[field] == pytest.approx(value), (checkpoint.name, field)
        metadata = specconv.open(path).metadata
        tokenizer = parameters["tokenizer"]
        assert tokenizer["tokens"] == metadata["tokenizer.ggml.tokens"], checkpoint.name
        if "merges" in tokenizer:
            assert tokenizer["merges"] == metadata["tokenizer.ggml.merges"], checkpoint.name
    assert n_read >= 10
