"""Files as arrays, compared with the package gguf; types of our own, compared with its dequantizer."""

import pathlib

import gguf
import numpy as np
import pytest
from conftest import MODELS, ROOT

import specconv

# Types whose dequantization the package gguf has.
TYPES = [
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
]  # fmt: skip


def checkpoints():
    """All checkpoints of the repository that convert without a target."""
    for parent in (MODELS, ROOT / "tests" / "reference"):
        for config in sorted(parent.glob("*/config.json")):
            yield config.parent


@pytest.mark.parametrize("checkpoint", list(checkpoints()), ids=lambda path: path.name)
def test_files_are_read_as_by_gguf(checkpoint, tmp_path):
    path = tmp_path / "model.gguf"
    try:
        specconv.convert(checkpoint, path)
    except specconv.Error as error:
        # EAGLE-3 drafts need their target, and some checkpoints are made to be refused.
        assert str(error)
        return
    compare(path)


@pytest.mark.parametrize("ftype", ["Q4_K_M", "Q5_0", "IQ4_XS"])
def test_quantized_files_are_read_as_by_gguf(model, ftype, tmp_path):
    path = tmp_path / "model.gguf"
    specconv.quantize(model, path, ftype)
    compare(path)


def compare(path: pathlib.Path) -> None:
    theirs = gguf.GGUFReader(path)
    with specconv.open(path) as ours:
        assert [tensor.name for tensor in ours.tensors] == [t.name for t in theirs.tensors]
        for expected in theirs.tensors:
            tensor = ours[expected.name]
            assert tensor.dtype == expected.tensor_type.name
            assert tensor.n_bytes == expected.n_bytes
            assert tensor.offset == expected.data_offset
            assert tensor.shape == tuple(reversed(expected.shape.tolist()))
            assert np.array_equal(tensor.data.view("u1"), expected.data.view("u1"))
            if tensor.dtype not in TYPES:
                continue
            values = gguf.quants.dequantize(expected.data, expected.tensor_type)
            assert np.array_equal(tensor.dequantize(), values.reshape(tensor.shape), equal_nan=True)
        for field in theirs.fields.values():
            if not field.name.startswith("GGUF."):
                found = ours.metadata[field.name]
                assert same(found, field.contents()), field.name


def same(found, expected):
    if isinstance(expected, float):
        return found == pytest.approx(expected, nan_ok=True)
    if isinstance(expected, list) and expected and isinstance(expected[0], float):
        return found == pytest.approx(expected, nan_ok=True)
    return found == expected


def test_arrays_are_views_of_the_file(model):
    file = specconv.open(model)
    tensor = file["output_norm.weight"]
    first, second = tensor.data, tensor.data
    assert np.shares_memory(first, second)
    assert not first.flags.writeable
    file.close()
    assert first.sum() == second.sum()
    with pytest.raises(ValueError, match="closed"):
        tensor.data  # noqa: B018


def test_metadata(model):
    file = specconv.open(model)
    assert file.metadata["general.architecture"] == "qwen35"
    assert isinstance(file.metadata["tokenizer.ggml.tokens"], list)
    assert file.version == 3
    assert len(file) == len(file.tensors) == len(list(file))


@pytest.mark.parametrize("name", TYPES)
def test_arrays_are_dequantized_as_by_gguf(name):
    values = np.random.default_rng(7).standard_normal((3, 5, 512)).astype(np.float32)
    data = specconv.quantize_array(values, name)
    kind = gguf.GGMLQuantizationType[name]
    assert data.shape == gguf.quant_shape_to_byte_shape(values.shape, kind)
    found = specconv.dequantize_array(data, name)
    raw = data.view({"F32": "<f4", "F16": "<f2"}.get(name, "u1"))
    assert np.array_equal(found, gguf.quants.dequantize(raw, kind))
    bound = {"F32": 0, "F16": 1e-3, "BF16": 1e-2}.get(name, 1.5)
    assert np.abs(found - values).max() <= bound


def test_importance_changes_the_result():
    values = np.random.default_rng(8).standard_normal((4, 256)).astype(np.float32)
    importance = np.linspace(0.1, 10, 256)
    plain = specconv.quantize_array(values, "Q4_K")
    weighted = specconv.quantize_array(values, "Q4_K", importance=importance)
    assert plain.shape == weighted.shape and not np.array_equal(plain, weighted)


@pytest.mark.parametrize(
    ("shape", "value", "dtype", "message"),
    [
        ((2, 33), 0.0, "Q8_0", "rows of 33 values, expected a multiple of 32 for Q8_0"),
        ((2, 32), float("nan"), "Q8_0", "row 0, column 0: NaN, expected finite values"),
        ((2, 32), 0.0, "Q9_9", 'type "Q9_9", expected one of'),
    ],
)
def test_wrong_arrays_are_errors(shape, value, dtype, message):
    with pytest.raises(specconv.Error) as caught:
        specconv.quantize_array(np.full(shape, value, np.float32), dtype)
    assert str(caught.value).startswith(message)


def test_a_truncated_file_is_an_error(model, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(model.read_bytes()[:5000])
    with pytest.raises(specconv.Error, match="cut.gguf"):
        specconv.open(path)
