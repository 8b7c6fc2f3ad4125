"""The Python blocks of the documents run as written."""

import os
import re

import pytest
from conftest import MODELS, ROOT


@pytest.mark.parametrize("document", ["docs/python.md", "python/README.md"])
def test_blocks_run(document, tmp_path):
    text = (ROOT / document).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    (tmp_path / "models").symlink_to(MODELS)
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        names = {}
        if document == "python/README.md":
            import specconv

            specconv.convert("models/tiny-qwen35-mtp", "model.gguf")
        for block in blocks:
            exec(compile(block, document, "exec"), names)
    finally:
        os.chdir(before)
