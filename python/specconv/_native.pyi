from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Optional, Union

__version__: str

def main(name: str, args: Sequence[str]) -> int: ...
def call(
    name: str,
    args: Sequence[str],
    on_message: Callable[[str, str], None],
    on_progress: Optional[Callable[[str, int, int, str], None]],
) -> tuple[bytes, bool]: ...
def types() -> list[tuple[str, int, int]]: ...
def quantize_rows(
    data: bytes, n_per_row: int, dtype: str, importance: Optional[Sequence[float]] = None
) -> bytearray: ...
def dequantize_rows(data: bytes, n_per_row: int, dtype: str) -> bytearray: ...

class File:
    def __new__(cls, path: Union[str, PathLike[str]]) -> File: ...
    @property
    def version(self) -> int: ...
    def metadata(self) -> dict[str, Any]: ...
    def tensors(self) -> list[tuple[str, list[int], str, PathLike[str], int, int]]: ...
    def dequantize(self, index: int) -> bytearray: ...

class Engine:
    n_ctx: int
    backend: str
    spec_types: list[str]
    def __new__(
        cls,
        path: Union[str, PathLike[str]],
        draft: Sequence[Union[str, PathLike[str]]],
        spec_type: Optional[Sequence[str]],
        n_draft_max: int,
        n_ctx: int,
        device: str,
        threads: int,
    ) -> Engine: ...
    def encode(self, text: str, add_special: bool) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    def chat(self, text: str) -> str: ...
    def generate(
        self,
        tokens: Sequence[int],
        n_predict: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        ignore_eos: bool,
    ) -> Generation: ...

class Generation:
    def next(self) -> Optional[str]: ...
    def report(self) -> Optional[str]: ...
    def stop(self) -> None: ...
