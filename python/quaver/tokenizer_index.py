"""Encodes a short text without loading the whole vocabulary.

Loading tokenizer.json (262,144 pieces, 513,511 merges) takes 0.8–1.8 s, several times what the weights take. BPE on a
text can only ever form pieces that are substrings of the text, so a tokenizer that holds just those pieces and their
merges gives the same ids: the index finds them in a memory-mapped file, and `tokenizers` does the rest in milliseconds.

tokenizer_index.bin, little endian, n pieces: magic (8 bytes) · u32 n · u32 number of merges · u32 bytes of the
skeleton · u32 bytes of the pieces · u32[n] ids in the order of their UTF-8 bytes · u32[n+1] where piece i starts ·
u32[n+1] where the merges that form piece i start · u32[merges] rank << 8 | bytes of the left part · the skeleton
(tokenizer.json without vocabulary and merges) · the pieces.
"""

from __future__ import annotations

import json
import mmap
import struct
from itertools import accumulate
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from quaver.errors import BadInputError

FILE_NAME = "tokenizer_index.bin"
MAX_CHARACTERS = 4096  # a longer text needs so many look-ups that loading everything is quicker
_MAGIC = b"QVTOK\x01\x00\x00"
_HEADER = struct.Struct("<8s4I")


class TokenizerIndex:
    """The pieces and merges of one vocabulary in a memory map. Raises BadInputError for a file that is not one."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._map = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            magic, count, num_merges, skeleton_bytes, piece_bytes = _HEADER.unpack_from(self._map)
        except (ValueError, struct.error):
            raise BadInputError(f"{path}: expected a tokenizer index") from None
        numbers = 3 * count + 2 + num_merges
        tail = _HEADER.size + 4 * numbers
        if magic != _MAGIC or len(self._map) != tail + skeleton_bytes + piece_bytes:
            raise BadInputError(f"{path}: expected a tokenizer index of version 1 and of the size that it names")
        table = self._map[_HEADER.size : tail].cast("I")
        self._sorted_ids = table[:count]
        self._starts = table[count : 2 * count + 1]
        self._merge_starts = table[2 * count + 1 : 3 * count + 2]
        self._merges = table[3 * count + 2 :]
        self._skeleton: dict[str, Any] = json.loads(bytes(self._map[tail : tail + skeleton_bytes]))
        self._pieces = self._map[tail + skeleton_bytes :]
        self.special_ids = frozenset(token["id"] for token in self._skeleton["added_tokens"] if token["special"])

    def __len__(self) -> int:
        return len(self._sorted_ids)

    def piece(self, token_id: int) -> str:
        if token_id >= len(self):
            return ""  # vocabularies are padded
        return bytes(self._pieces[self._starts[token_id] : self._starts[token_id + 1]]).decode()

    def tokenizer_for(self, text: str) -> Tokenizer:
        """A tokenizer that encodes `text` as the whole vocabulary would."""
        normal = text.replace(" ", "▁")
        vocabulary = dict(self._skeleton["always"])
        for position in range(len(normal)):
            vocabulary |= self._pieces_at(normal, position)
        added = [token for token in self._skeleton["added_tokens"] if token["content"] in vocabulary]
        ranked = sorted(merge for piece, token_id in vocabulary.items() for merge in self._merges_of(piece, token_id))
        model = self._skeleton["model"] | {"vocab": vocabulary, "merges": [pair for _, pair in ranked]}
        skeleton = {key: value for key, value in self._skeleton.items() if key != "always"}
        return Tokenizer.from_str(json.dumps(skeleton | {"model": model, "added_tokens": added}))

    def _pieces_at(self, text: str, position: int) -> dict[str, int]:
        """All pieces that `text` has at `position`; stops at the first prefix with which no piece begins."""
        found = {}
        low = 0
        for end in range(position + 1, len(text) + 1):
            key = text[position:end].encode()
            low = self._lower_bound(key, low)
            if low == len(self):
                break
            token_id = self._sorted_ids[low]
            candidate = bytes(self._pieces[self._starts[token_id] : self._starts[token_id + 1]])
            if candidate == key:
                found[text[position:end]] = token_id
            elif not candidate.startswith(key):
                break
        return found

    def _lower_bound(self, key: bytes, low: int) -> int:
        high = len(self)
        while low < high:
            middle = (low + high) // 2
            token_id = self._sorted_ids[middle]
            if self._pieces[self._starts[token_id] : self._starts[token_id + 1]].tobytes() < key:
                low = middle + 1
            else:
                high = middle
        return low

    def _merges_of(self, piece: str, token_id: int) -> list[tuple[int, tuple[str, str]]]:
        data = piece.encode()
        packed = self._merges[self._merge_starts[token_id] : self._merge_starts[token_id + 1]]
        return [(entry >> 8, (data[: entry & 255].decode(), data[entry & 255 :].decode())) for entry in packed]


def write_index(tokenizer: Tokenizer, path: Path) -> None:
    """Writes the index of a tokenizer made by gguf_tokenizer.build_tokenizer()."""
    skeleton = json.loads(tokenizer.to_str())
    model = skeleton["model"]
    vocabulary: dict[str, int] = model.pop("vocab")
    merges: list[list[str]] = model.pop("merges")
    pieces = [piece.encode() for piece, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    fallback = {f"<0x{byte:02X}>" for byte in range(256)} | {model["unk_token"]}
    template = skeleton["post_processor"]["special_tokens"] if skeleton["post_processor"] else {}
    skeleton["always"] = {piece: vocabulary[piece] for piece in sorted(fallback | set(template)) if piece in vocabulary}

    if len(merges) >= 1 << 24 or any(len(piece) > 255 for piece in pieces):
        return  # does not fit the packed merges: the model works without an index, it only starts later
    forming: list[list[int]] = [[] for _ in pieces]
    for rank, (left, right) in enumerate(merges):
        forming[vocabulary[left + right]].append(rank << 8 | len(left.encode()))
    numbers = sorted(range(len(pieces)), key=pieces.__getitem__)
    numbers += accumulate(map(len, pieces), initial=0)
    numbers += accumulate(map(len, forming), initial=0)
    numbers += (entry for entries in forming for entry in entries)
    text = json.dumps(skeleton).encode()
    blob = b"".join(pieces)
    with path.open("wb") as file:
        file.write(_HEADER.pack(_MAGIC, len(pieces), len(merges), len(text), len(blob)))
        file.write(struct.pack(f"<{len(numbers)}I", *numbers))
        file.write(text + blob)
