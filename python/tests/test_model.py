"""Generated texts, compared with the program's."""

import json
import subprocess
import sys

import pytest

import specconv

PROMPT = "def main():"


@pytest.fixture(scope="module")
def loaded(quantized):
    return specconv.Model.load(quantized, spec_type="draft-mtp", device="cpu")


def program(model, *args):
    code = "import sys; from specconv._cli import specrun; sys.exit(specrun())"
    command = [sys.executable, "-c", code, "generate", model, PROMPT, "--json", *args]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(ran.stdout)


def test_the_text_is_that_of_the_program(loaded, quantized):
    expected = program(quantized, "-n", "24", "--spec-type", "draft-mtp", "--device", "cpu")
    report = loaded.generate(PROMPT, 24)
    assert report.text == expected["text"]
    assert report.tokens == expected["tokens"]
    assert report.stop == expected["stop"]
    assert report.counters.n_drafted > 0
    assert loaded.spec_types == ["draft-mtp"]


def test_sampled_texts_are_those_of_the_program(loaded, quantized):
    expected = program(quantized, "-n", "24", "--temp", "0.9", "--seed", "5", "--device", "cpu")
    report = loaded.generate(PROMPT, 24, temp=0.9, seed=5)
    assert report.text == expected["text"]
    assert loaded.generate(PROMPT, 24, temp=0.9, seed=6).text != report.text


def test_streams_join_to_the_text(loaded):
    stream = loaded.generate(PROMPT, 24, stream=True)
    pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(pieces) == stream.report.text == loaded.generate(PROMPT, 24).text


def test_a_stream_can_be_stopped(loaded):
    stream = loaded.generate(PROMPT, 2000, stream=True, ignore_eos=True)
    next(stream)
    stream.stop()
    assert list(stream) is not None
    assert stream.report.stop == "interrupted"
    # An abandoned stream does not block the next text.
    next(loaded.generate(PROMPT, 2000, stream=True, ignore_eos=True))
    assert loaded.generate(PROMPT, 4).stop in ("length", "end-of-text")


def test_tokens(loaded):
    tokens = loaded.encode("hello world")
    assert loaded.decode(tokens) == "hello world"
    assert loaded.generate(tokens, 4).prompt_tokens == tokens
    with pytest.raises(specconv.Error, match="expected an id below"):
        loaded.decode([10**6])


def test_wrong_arguments_are_errors(quantized):
    with pytest.raises(specconv.Error, match="draft-mpt"):
        specconv.Model.load(quantized, spec_type="draft-mpt")
    with pytest.raises(specconv.Error, match="expected auto, cpu"):
        specconv.Model.load(quantized, device="tpu")
    with pytest.raises(specconv.Error, match="missing"):
        specconv.Model.load("missing.gguf")
