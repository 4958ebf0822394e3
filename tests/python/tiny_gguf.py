"""Small GGUF files with random weights, written by the gguf package's own writer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np

HIDDEN, INTERMEDIATE, HEAD_DIM, FULL_HEAD_DIM = 64, 96, 16, 32
_CONTROL = {
    "gemma3": {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 105: "<start_of_turn>", 106: "<end_of_turn>"},
    "gemma4": {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 50: "<|tool_response>", 105: "<|turn>", 106: "<turn|>"},
}
_USER_DEFINED = {107: "\n", 108: "\n\n", 109: "  "}
_WORDS = ["▁", "e", "h", "l", "o", "w", "r", "d", "s", "u", "m", "he", "ll", "hell", "hello", "▁w", "or", "▁wor", "ld",
          "▁world", "us", "er", "user"]  # fmt: skip


def vocabulary(family: str) -> tuple[list[str], list[float], list[int]]:
    """300 pieces: the special ones at Gemma's ids, every byte piece that fits, and a few words."""
    pieces = {**_CONTROL[family], **_USER_DEFINED}
    free = (i for i in range(400) if i not in pieces)
    words = {next(free): word for word in _WORDS}
    byte_pieces = {next(free): f"<0x{byte:02X}>" for byte in range(256)}
    everything = pieces | words | byte_pieces
    tokens = [everything[i] for i in sorted(everything)]
    assert sorted(everything) == list(range(len(tokens)))
    kinds = dict.fromkeys(_CONTROL[family], 3) | dict.fromkeys(_USER_DEFINED, 4) | dict.fromkeys(byte_pieces, 6)
    scores = [-float(i) if kinds.get(i, 1) == 1 else -1000.0 for i in range(len(tokens))]
    return tokens, scores, [kinds.get(i, 1) for i in range(len(tokens))]


def _start(path: Path, family: str, *, layers: int, kv_heads: int | list[int]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(4)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(32)
    tokens, scores, types = vocabulary(family)
    writer.add_tokenizer_model("llama" if family == "gemma3" else "gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    if family == "gemma4":
        writer.add_token_merges(["h e", "l l", "he ll", "hell o", "▁ w", "o r", "▁w or", "l d", "▁wor ld"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    return writer


def _add_tensors(writer: gguf.GGUFWriter, shapes: Iterable[tuple[str, tuple[int, ...]]], norm_offset: float) -> None:
    random = np.random.default_rng(7)
    for name, shape in shapes:
        values = random.normal(0.0, 0.05, shape).astype(np.float32)
        if "norm" in name:
            values = (norm_offset + values).astype(np.float32)
        if len(shape) == 2:  # matrices as Q8_0, as in the real files
            writer.add_tensor(
                name,
                gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0),
                raw_dtype=gguf.GGMLQuantizationType.Q8_0,
            )
        else:
            writer.add_tensor(name, values)


def _layer_shapes(layer: int, head_dim: int, kv_heads: int, *, has_v: bool) -> list[tuple[str, tuple[int, ...]]]:
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "attn_q": (4 * head_dim, HIDDEN),
        "attn_k": (kv_heads * head_dim, HIDDEN),
        "attn_output": (HIDDEN, 4 * head_dim),
        "attn_q_norm": (head_dim,),
        "attn_k_norm": (head_dim,),
        "post_attention_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INTERMEDIATE, HIDDEN),
        "ffn_up": (INTERMEDIATE, HIDDEN),
        "ffn_down": (HIDDEN, INTERMEDIATE),
        "post_ffw_norm": (HIDDEN,),
    }
    if has_v:
        shapes["attn_v"] = (kv_heads * head_dim, HIDDEN)
    return [(f"blk.{layer}.{name}.weight", shape) for name, shape in shapes.items()]


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_gemma3(path: Path) -> Path:
    """Two sliding layers; norms are stored as 1 + w, as llama.cpp's converter does."""
    writer = _start(path, "gemma3", layers=2, kv_heads=1)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    size = len(vocabulary("gemma3")[0])
    shapes = [("token_embd.weight", (size, HIDDEN)), ("output_norm.weight", (HIDDEN,))]
    for layer in range(2):
        shapes += _layer_shapes(layer, HEAD_DIM, 1, has_v=True)
    _add_tensors(writer, shapes, norm_offset=1.0)
    return _finish(writer, path)


def write_gemma4(path: Path) -> Path:
    """One sliding layer and one full layer without V; norms are stored as they are."""
    writer = _start(path, "gemma4", layers=2, kv_heads=[2, 1])
    writer.add_key_length(FULL_HEAD_DIM)
    writer.add_value_length(FULL_HEAD_DIM)
    writer.add_key_length_swa(HEAD_DIM)
    writer.add_value_length_swa(HEAD_DIM)
    writer.add_sliding_window_pattern([True, False])
    writer.add_final_logit_softcapping(30.0)
    writer.add_chat_template(
        "{{ bos_token }}{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>{% endfor %}"
    )
    size = len(vocabulary("gemma4")[0])
    shapes = [("token_embd.weight", (size, HIDDEN)), ("output_norm.weight", (HIDDEN,))]
    shapes.append(("rope_freqs.weight", (FULL_HEAD_DIM // 2,)))
    shapes += _layer_shapes(0, HEAD_DIM, 2, has_v=True) + _layer_shapes(1, FULL_HEAD_DIM, 1, has_v=False)
    shapes += [(f"blk.{layer}.layer_output_scale.weight", (1,)) for layer in range(2)]
    _add_tensors(writer, shapes, norm_offset=0.0)
    return _finish(writer, path)
