"""Reads the metadata and the tensors of a GGUF file (version 2 or 3, little endian) through a memory map.

The `gguf` package's own reader keeps several numpy views for every array element, which costs 16 s on a 262,144-entry
vocabulary, and trusts the counts in the file; this one takes 0.4 s and checks every length against the file's size
first. The quantised blocks themselves are decoded by `gguf.quants`.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from quaver.errors import BadInputError

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_ENTRIES = 1 << 20  # of metadata keys and of tensors; real files have a few hundred
_MAX_RANK = 4


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies; `shape` is row-major (GGUF stores the fastest dimension first)."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int  # bytes from the start of the file
    num_bytes: int


class GgufFile:
    """Metadata in `fields`, tensors by name in `tensors`. Raises BadInputError for anything malformed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
            raise BadInputError(f"{path}: expected a readable GGUF file ({error})") from None
        self._position = 0
        self.fields: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._read_header()

    def read(self, tensor: GgufTensor) -> np.ndarray:
        """The tensor's values as float32."""
        raw = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        block, block_bytes = GGML_QUANT_SIZES[tensor.type]
        rows = raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * block_bytes)
        try:
            return dequantize(rows, tensor.type)
        except NotImplementedError:
            raise BadInputError(f"tensor {tensor.name} type {tensor.type.name}: expected a float type or a quantised "
                                "type that the gguf package decodes") from None  # fmt: skip

    def _fail(self, what: str) -> BadInputError:
        return BadInputError(f"{self.path}: {what}")

    def _take(self, num_bytes: int) -> bytes:
        end = self._position + num_bytes
        if end > len(self._map):
            raise self._fail(f"truncated: expected {num_bytes} bytes at offset {self._position} of {len(self._map)}")
        data = self._map[self._position : end]
        self._position = end
        return data

    def _scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _count(self, what: str, limit: int) -> int:
        count = self._scalar("Q")
        if count > limit:
            raise self._fail(f"{what} {count}: expected at most {limit}")
        return count

    def _string(self) -> str:
        data = self._take(self._count("string length", len(self._map)))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise self._fail(f"string {data[:40]!r}: expected UTF-8") from None

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self._fail(f"metadata type {kind}: expected 0 to 12")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any] | np.ndarray:
        kind = self._scalar("I")
        count = self._count("array length", len(self._map))
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind not in _SCALARS:
            raise self._fail(f"array element type {kind}: expected a scalar or a string")
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _read_header(self) -> None:
        if self._take(4) != _MAGIC:
            raise self._fail("expected the magic bytes GGUF")
        version = self._scalar("I")
        if version not in (2, 3):
            raise self._fail(f"GGUF version {version}: expected 2 or 3")
        num_tensors = self._count("tensor count", _MAX_ENTRIES)
        num_fields = self._count("metadata count", _MAX_ENTRIES)
        for _ in range(num_fields):
            key = self._string()
            self.fields[key] = self._value(self._scalar("I"))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise self._fail(f"general.alignment {alignment}: expected a positive integer")
        data_start = -(-self._position // alignment) * alignment
        for name, shape, kind, offset in infos:
            self._add_tensor(name, shape, kind, data_start + offset)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        rank = self._scalar("I")
        if not 1 <= rank <= _MAX_RANK:
            raise self._fail(f"tensor {name} rank {rank}: expected 1 to {_MAX_RANK}")
        shape = tuple(self._scalar("Q") for _ in range(rank))[::-1]
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _add_tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> None:
        if name in self.tensors:
            raise self._fail(f"tensor {name}: expected one of that name, found two")
        try:
            quantisation = GGMLQuantizationType(kind)
        except ValueError:
            raise self._fail(f"tensor {name} type {kind}: expected a type that the gguf package knows") from None
        block, block_bytes = GGML_QUANT_SIZES[quantisation]
        if shape[-1] % block:
            raise self._fail(f"tensor {name} row length {shape[-1]}: expected a multiple of {block}")
        num_bytes = math.prod(shape) // block * block_bytes
        if offset + num_bytes > len(self._map):
            raise self._fail(f"truncated: tensor {name} ends at byte {offset + num_bytes} of {len(self._map)}")
        self.tensors[name] = GgufTensor(name, shape, quantisation, offset, num_bytes)
