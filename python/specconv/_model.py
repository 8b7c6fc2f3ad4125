"""Text generation with speculation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Literal, Optional, Union, overload

from . import _native
from .reports import GenerateReport

_Path = Union[str, "os.PathLike[str]"]


class TextStream(Iterator[str]):
    """The pieces of a text, as they are generated. ``report`` is set after the last one."""

    def __init__(self, generation: _native.Generation) -> None:
        self._generation = generation
        self.report: Optional[GenerateReport] = None

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        piece = self._generation.next()
        if piece is not None:
            return piece
        report = self._generation.report()
        if self.report is None and report is not None:
            self.report = GenerateReport.from_dict(json.loads(report))
        raise StopIteration

    def stop(self) -> None:
        """Ends the text after the current token."""
        self._generation.stop()


class Model:
    """A loaded model. Use :meth:`Model.load`."""

    def __init__(self, engine: _native.Engine) -> None:
        self._engine = engine

    @staticmethod
    def load(
        path: _Path,
        *,
        draft: Union[_Path, Sequence[_Path]] = (),
        spec_type: Union[str, Sequence[str], None] = None,
        n_draft_max: int = 3,
        n_ctx: int = 4096,
        device: str = "auto",
        threads: int = 0,
    ) -> Model:
        """Loads a model, with the drafters of ``spec_type``, such as ``"draft-mtp"``.

        ``draft`` are draft models, EAGLE-3 drafts or MTP sidecars, which select their speculator if ``spec_type``
        is omitted. ``n_ctx`` limits the prompt and the text together, in tokens.
        """
        drafts = [draft] if isinstance(draft, (str, os.PathLike)) else list(draft)
        types = spec_type.split(",") if isinstance(spec_type, str) else spec_type
        if types is not None:
            types = [name for name in types if name != "none"]
        return Model(
            _native.Engine(path, drafts, types, n_draft_max, n_ctx, device, threads)
        )

    @property
    def n_ctx(self) -> int:
        """Maximum number of tokens of prompt and text together."""
        return self._engine.n_ctx

    @property
    def backend(self) -> str:
        """Name of the backend, with its instruction set or device."""
        return self._engine.backend

    @property
    def spec_types(self) -> list[str]:
        """Names of the speculators."""
        return self._engine.spec_types

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Returns the tokens of a text."""
        return self._engine.encode(text, add_special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without control tokens."""
        return self._engine.decode(tokens)

    @overload
    def generate(
        self,
        prompt: Union[str, Sequence[int]],
        n_predict: int = ...,
        *,
        stream: Literal[False] = ...,
        chat: bool = ...,
        temp: float = ...,
        top_k: int = ...,
        top_p: float = ...,
        min_p: float = ...,
        seed: int = ...,
        ignore_eos: bool = ...,
    ) -> GenerateReport: ...
    @overload
    def generate(
        self,
        prompt: Union[str, Sequence[int]],
        n_predict: int = ...,
        *,
        stream: Literal[True],
        chat: bool = ...,
        temp: float = ...,
        top_k: int = ...,
        top_p: float = ...,
        min_p: float = ...,
        seed: int = ...,
        ignore_eos: bool = ...,
    ) -> TextStream: ...
    def generate(
        self,
        prompt: Union[str, Sequence[int]],
        n_predict: int = 128,
        *,
        stream: bool = False,
        chat: bool = False,
        temp: float = 0.0,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        seed: int = 0,
        ignore_eos: bool = False,
    ) -> Union[GenerateReport, TextStream]:
        """Continues a prompt: a text, or tokens. The text is that of ``specrun generate`` with the same settings.

        With ``stream``, returns an iterator over pieces of the text. ``chat`` applies the model's chat template to
        a text. One text is generated at a time; further calls wait.
        """
        if isinstance(prompt, str):
            tokens = self.encode(self._engine.chat(prompt) if chat else prompt)
        else:
            tokens = list(prompt)
        generation = self._engine.generate(
            tokens, n_predict, temp, top_k, top_p, min_p, seed, ignore_eos
        )
        pieces = TextStream(generation)
        if stream:
            return pieces
        for _ in pieces:
            pass
        if pieces.report is None:
            raise RuntimeError("internal error: the text has no report")
        return pieces.report
