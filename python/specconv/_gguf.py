"""GGUF files: metadata, and tensors as numpy arrays."""

from __future__ import annotations

import builtins
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _native

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_Path = Union[str, "os.PathLike[str]"]

# Types whose values numpy has; the others are arrays of bytes.
_NUMPY_TYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "F64": "<f8",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
}


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("arrays need numpy: pip install 'specconv[numpy]'") from error
    return numpy


@dataclass(frozen=True)
class Tensor:
    """A tensor of an open file."""

    name: str
    shape: tuple[int, ...]
    """Elements per dimension, the contiguous one last, as in numpy."""
    dtype: str
    """Element type, such as ``F32`` or ``Q4_K``."""
    path: str
    """File with the data: for a split model, one of its shards."""
    offset: int
    """Offset of the data in its file, in bytes."""
    n_bytes: int
    """Size of the data, in bytes."""
    _file: GGUFFile = field(repr=False, compare=False)
    _index: int = field(repr=False, compare=False)

    @property
    def data(self) -> NDArray[Any]:
        """The data as a read-only view of the file, without a copy.

        F32, F16, F64 and integers have their numpy type. All other types, BF16 too, are bytes; the last dimension
        is then the size of a row in bytes.
        """
        np = _numpy()
        numpy_type = _NUMPY_TYPES.get(self.dtype)
        dtype = np.dtype(numpy_type or "u1")
        shape = list(self.shape)
        n_items = self.n_bytes // dtype.itemsize
        if numpy_type is None:
            n_rows = 1
            for n in shape[:-1]:
                n_rows *= n
            shape[-1] = self.n_bytes // max(n_rows, 1)
        if n_items == 0:
            return np.zeros(shape, dtype)  # type: ignore[no-any-return]
        mapped = self._file._map(self.path)
        return np.frombuffer(mapped, dtype, n_items, self.offset).reshape(shape)  # type: ignore[no-any-return]

    def dequantize(self) -> NDArray[np.float32]:
        """Returns the values as a new array of ``float32``."""
        np = _numpy()
        if self.dtype in ("F64", "I8", "I16", "I32", "I64"):
            return self.data.astype(np.float32)
        values = self._file._native_file().dequantize(self._index)
        return np.frombuffer(values, "<f4").reshape(self.shape)  # type: ignore[no-any-return]


class GGUFFile(Mapping[str, Tensor]):
    """An open GGUF file, or all shards of a split model: a mapping from names to tensors, in file order."""

    def __init__(self, path: _Path) -> None:
        self._file: Optional[_native.File] = _native.File(path)
        self._maps: dict[str, mmap.mmap] = {}
        self._metadata: Optional[dict[str, Any]] = None
        self.path = os.fspath(path)
        self.version = self._file.version
        """Version of the format."""
        self._tensors: dict[str, Tensor] = {}
        for index, (name, shape, dtype, file, offset, n_bytes) in enumerate(self._file.tensors()):
            self._tensors[name] = Tensor(
                name, tuple(shape), dtype, os.fspath(file), offset, n_bytes, self, index
            )

    @property
    def metadata(self) -> dict[str, Any]:
        """All keys with their values. Arrays are lists; a string that is not UTF-8 is ``bytes``."""
        if self._metadata is None:
            self._metadata = self._native_file().metadata()
        return self._metadata

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in file order."""
        return list(self._tensors.values())

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({self.path!r}, {len(self)} tensors)"

    def close(self) -> None:
        """Closes the file. Arrays that exist stay valid: they keep their mapping open."""
        self._file = None
        self._maps.clear()

    def _native_file(self) -> _native.File:
        if self._file is None:
            raise ValueError(f"{self.path}: the file is closed")
        return self._file

    def _map(self, path: str) -> mmap.mmap:
        self._native_file()
        if path not in self._maps:
            with builtins.open(path, "rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[path]


def open(path: _Path) -> GGUFFile:  # noqa: A001
    """Opens a GGUF file, or the first shard of a split model, and checks its structure."""
    return GGUFFile(path)


def quantize_array(
    array: NDArray[Any], dtype: str, *, importance: Optional[Sequence[float]] = None
) -> NDArray[np.uint8]:
    """Quantizes an array along its last dimension, as ``specconv quantize`` does.

    Returns bytes; the last dimension is the size of a row. ``importance`` has one weight for each column, as an
    importance matrix has.
    """
    np = _numpy()
    values = np.ascontiguousarray(array, "<f4")
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(f"array of shape {values.shape}, expected rows of values")
    weights = None if importance is None else [float(weight) for weight in importance]
    out = _native.quantize_rows(values.tobytes(), values.shape[-1], dtype, weights)
    return np.frombuffer(out, "u1").reshape(*values.shape[:-1], -1)  # type: ignore[no-any-return]


def dequantize_array(data: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Dequantizes rows of bytes, as from :func:`quantize_array` or :attr:`Tensor.data`."""
    np = _numpy()
    layouts = {name: (block_len, block_bytes) for name, block_len, block_bytes in _native.types()}
    block_len, block_bytes = layouts.get(dtype.upper(), (1, 1))
    rows = np.ascontiguousarray(data).view("u1")
    n_per_row = rows.shape[-1] // block_bytes * block_len
    out = _native.dequantize_rows(rows.tobytes(), n_per_row, dtype)
    return np.frombuffer(out, "<f4").reshape(*rows.shape[:-1], n_per_row)  # type: ignore[no-any-return]
