"""Models of the tests: those of the repository, converted once."""

import pathlib

import pytest

import specconv

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def model(folder):
    """The bundled model with an MTP head, in BF16."""
    path = folder / "model.gguf"
    specconv.convert(MODELS / "tiny-qwen35-mtp", path)
    return path


@pytest.fixture(scope="session")
def quantized(model, folder):
    path = folder / "model-q4.gguf"
    specconv.quantize(model, path, "Q4_K_M", mtp_type="Q8_0")
    return path
