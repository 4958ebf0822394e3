"""`quaver convert FILE.gguf OUT_DIR`: a GGUF file of Gemma 3 or Gemma 4 (dense, text) becomes a Hugging Face folder."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quaver.chat import GEMMA3_TEMPLATE
from quaver.errors import BadInputError
from quaver.gguf_config import generation_config, model_config
from quaver.gguf_file import GgufFile, GgufTensor
from quaver.gguf_tokenizer import build_tokenizer, tokenizer_config
from quaver.tokenizer_index import FILE_NAME as INDEX_NAME
from quaver.tokenizer_index import write_index

_ELEMENTS_AT_ONCE = 1 << 24  # 64 MB of float32: memory stays flat whatever a tensor's size
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

Progress = Callable[[int, int], None]  # (bytes written, bytes in all)


def convert(source: Path, out_dir: Path, progress: Progress | None = None) -> None:
    """Writes config.json, generation_config.json, model.safetensors (BF16), tokenizer.json, tokenizer_index.bin and
    tokenizer_config.json. Everything goes to a temporary folder beside `out_dir` that is renamed at the end, so an
    interrupted conversion leaves no half-written model. Raises BadInputError for a file that cannot be converted."""
    if out_dir.exists():
        raise BadInputError(f"{out_dir}: expected a folder that does not exist yet")
    gguf = GgufFile(source)
    config = model_config(gguf)
    tensors = _renamed(gguf)
    tokenizer = build_tokenizer(gguf.fields)
    template = gguf.fields.get("tokenizer.chat_template")
    if template is None and config["model_type"] == "gemma3_text":
        template = GEMMA3_TEMPLATE
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    except OSError as error:
        raise BadInputError(f"{out_dir}: expected a place to write to ({error.strerror})") from None
    try:
        _write_json(scratch / "config.json", config)
        _write_json(scratch / "generation_config.json", generation_config(config))
        _write_json(scratch / "tokenizer_config.json", tokenizer_config(gguf.fields, template))
        tokenizer.save(str(scratch / "tokenizer.json"), pretty=False)
        write_index(tokenizer, scratch / INDEX_NAME)
        _write_safetensors(scratch / "model.safetensors", gguf, tensors, config["model_type"], progress)
        scratch.chmod(0o755)
        os.replace(scratch, out_dir)
    except OSError as error:
        raise BadInputError(f"{out_dir}: expected to write the model there ({error.strerror})") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 → BF16 bits, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _renamed(gguf: GgufFile) -> dict[str, GgufTensor]:
    """Hugging Face name → tensor. `rope_freqs` restates the configuration and is left out."""
    named = {_hf_name(name): tensor for name, tensor in gguf.tensors.items() if name != "rope_freqs.weight"}
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        if name not in named:
            raise BadInputError(f"{gguf.path}: expected the tensor {name} under its GGUF name, found none")
    return named


def _hf_name(name: str) -> str:
    if name in _MODEL_TENSORS:
        return _MODEL_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[3] == "weight":
        prefix = f"model.layers.{int(parts[1])}."
        if parts[2] == "layer_output_scale":
            return prefix + "layer_scalar"
        if parts[2] in _LAYER_TENSORS:
            return f"{prefix}{_LAYER_TENSORS[parts[2]]}.weight"
    raise BadInputError(f"tensor {name}: expected a tensor of a dense Gemma 3 or Gemma 4 text model")


def _write_safetensors(
    path: Path, gguf: GgufFile, tensors: dict[str, GgufTensor], model_type: str, progress: Progress | None
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 2 * int(np.prod(tensor.shape, dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors.items():
            # Gemma 3's GGUF norms are 1 + w, Hugging Face's are w; Gemma 4 has w in both.
            shift = np.float32(1 if model_type == "gemma3_text" and name.endswith("norm.weight") else 0)
            for rows in _row_blocks(tensor):
                file.write(to_bf16(gguf.read(rows) - shift).data)
                done += 2 * int(np.prod(rows.shape, dtype=np.int64))
                if progress:
                    progress(done, end)
        file.flush()
        os.fsync(file.fileno())


def _row_blocks(tensor: GgufTensor) -> Iterator[GgufTensor]:
    """The tensor in slices along its first axis, of at most _ELEMENTS_AT_ONCE elements (at least one row)."""
    if tensor.num_bytes == 0:
        return
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    row_bytes = tensor.num_bytes // rows
    row_elements = int(np.prod(tensor.shape, dtype=np.int64)) // rows
    at_once = max(1, _ELEMENTS_AT_ONCE // row_elements)
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        shape = (count, *tensor.shape[1:]) if len(tensor.shape) > 1 else tensor.shape
        yield GgufTensor(tensor.name, shape, tensor.type, tensor.offset + first * row_bytes, count * row_bytes)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
