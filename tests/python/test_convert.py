"""GGUF → Hugging Face folder: values, names, configuration, atomicity and hostile files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from quaver.convert import convert, to_bf16
from quaver.errors import BadInputError
from quaver.gguf_file import GgufFile
from quaver.tokenizer import Tokenizer
from tiny_gguf import HEAD_DIM, HIDDEN, write_gemma3, write_gemma4


def bf16_to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Bf16File:
    """BF16 tensors of a safetensors file; the library checks the header, numpy has no BF16."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, "numpy") as file:
            self.names = set(file.keys())
        self._data = np.memmap(path, np.uint8, "r")
        header_bytes = int(self._data[:8].view("<u8")[0])
        self._header = json.loads(bytes(self._data[8 : 8 + header_bytes]))
        self._start = 8 + header_bytes

    def __getitem__(self, name: str) -> np.ndarray:
        """The tensor's bits, uint16."""
        entry = self._header[name]
        assert entry["dtype"] == "BF16"
        first, last = entry["data_offsets"]
        return self._data[self._start + first : self._start + last].view("<u2").reshape(entry["shape"])


def nearest_bf16(value: float) -> float:
    """Round to nearest even by exact comparison of the two neighbours."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    low, high = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    below, above = (struct.unpack("<f", struct.pack("<I", b))[0] if b < 0x7F800000 or b >= 0x80000000 else 2.0**128
                    for b in (low, high))  # fmt: skip
    if value - below == above - value:
        return below if (low >> 16) % 2 == 0 else above
    return below if abs(value - below) < abs(above - value) else above


@settings(max_examples=300)
@given(st.floats(width=32, min_value=2.0**-100, max_value=2.0**100))
def test_bf16_rounding(value: float) -> None:
    assert bf16_to_float(to_bf16(np.float32([value])))[0] == nearest_bf16(value)


def test_bf16_special_values() -> None:
    values = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875, 3.3961775e38])
    expected = [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x3F80, 0x3F82, 0x7F80]
    assert to_bf16(values).tolist() == expected  # two ties to even; the last one overflows
    assert to_bf16(-np.float32([np.nan]))[0] & 0x7FC0 == 0x7FC0


def test_tiny_gemma3(tiny_dir: Path, tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write_gemma3(tmp_path / "tiny.gguf"))
    source = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    weights = Bf16File(tiny_dir / "model.safetensors")
    expected = {
        "model.embed_tokens.weight": source["token_embd.weight"],
        "model.norm.weight": source["output_norm.weight"] - 1,
        "model.layers.1.self_attn.q_proj.weight": source["blk.1.attn_q.weight"],
        "model.layers.1.self_attn.k_norm.weight": source["blk.1.attn_k_norm.weight"] - 1,
        "model.layers.0.mlp.down_proj.weight": source["blk.0.ffn_down.weight"],
        "model.layers.0.post_feedforward_layernorm.weight": source["blk.0.post_ffw_norm.weight"] - 1,
    }
    assert len(weights.names) == 2 + 2 * 13
    for name, values in expected.items():
        assert np.array_equal(weights[name], to_bf16(values)), name
    config = json.loads((tiny_dir / "config.json").read_text())
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert config["head_dim"] == config["query_pre_attn_scalar"] == HEAD_DIM
    assert (config["hidden_size"], config["sliding_window"], config["num_hidden_layers"]) == (HIDDEN, 32, 2)
    assert config["layer_types"] == ["sliding_attention"] * 2
    assert Tokenizer(tiny_dir).encode_prompt("hello world")[0] == 2


def test_tiny_gemma4(tmp_path: Path) -> None:
    """K=V full layer without v_proj, norms as they are, layer_scalar, merges by rank, two head dims."""
    source = write_gemma4(tmp_path / "tiny.gguf")
    convert(source, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == ["Gemma4ForCausalLM"]
    assert (config["head_dim"], config["global_head_dim"]) == (16, 32)
    assert (config["num_key_value_heads"], config["num_global_key_value_heads"]) == (2, 1)
    assert config["attention_k_eq_v"] is True
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["final_logit_softcapping"] == 30.0
    assert config["eos_token_id"] == [1, 106, 50]
    assert config["rope_parameters"]["full_attention"]["rope_type"] == "proportional"

    reader = gguf.GGUFReader(source)
    values = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    weights = Bf16File(tmp_path / "model" / "model.safetensors")
    assert "model.layers.0.self_attn.v_proj.weight" in weights.names
    assert "model.layers.1.self_attn.v_proj.weight" not in weights.names
    assert not any("rope" in name for name in weights.names)
    for name, theirs in {"model.layers.1.self_attn.q_norm.weight": "blk.1.attn_q_norm.weight",
                         "model.layers.0.layer_scalar": "blk.0.layer_output_scale.weight"}.items():  # fmt: skip
        assert np.array_equal(weights[name], to_bf16(values[theirs])), name
    tokenizer = Tokenizer(tmp_path / "model")
    pieces = [tokenizer._vocabulary.piece(token_id) for token_id in tokenizer.encode_prompt("hello world")[1:]]
    assert pieces == ["hello", "▁world"]
    assert "<|turn>" in tokenizer.config["chat_template"]


def q5_0_block(block: bytes) -> list[float]:
    """One Q5_0 block by the format's definition (ggml): 32 values from an f16 scale, 32 high bits and 32 nibbles."""
    scale, high = struct.unpack("<eI", block[:6])
    low = block[6:]
    values = [0.0] * 32
    for j in range(16):
        values[j] = scale * (((low[j] & 15) | ((high >> j) & 1) << 4) - 16)
        values[j + 16] = scale * (((low[j] >> 4) | ((high >> (j + 16)) & 1) << 4) - 16)
    return values


def test_the_real_model(model_dir: Path, gguf_file: Path) -> None:
    """Every tensor name and shape, one row of a Q5_0 and of the Q8_0 matrix decoded by hand, and a norm."""
    weights = Bf16File(model_dir / "model.safetensors")
    file = GgufFile(gguf_file)
    assert len(weights.names) == len(file.tensors) == 236
    assert weights["model.embed_tokens.weight"].shape == (262144, 640)
    assert weights["model.layers.17.self_attn.o_proj.weight"].shape == (640, 1024)

    data = np.memmap(gguf_file, np.uint8, "r")
    tensor = file.tensors["blk.3.attn_q.weight"]
    row = bytes(data[tensor.offset + 5 * 440 : tensor.offset + 6 * 440])  # 640 / 32 blocks of 22 bytes
    by_hand = np.float32([x for i in range(0, 440, 22) for x in q5_0_block(row[i : i + 22])])
    assert np.array_equal(weights["model.layers.3.self_attn.q_proj.weight"][5], to_bf16(by_hand))

    tensor = file.tensors["token_embd.weight"]
    row = bytes(data[tensor.offset + 9259 * 680 : tensor.offset + 9260 * 680])  # 640 / 32 blocks of 34 bytes
    blocks = [struct.unpack("<e32b", row[i : i + 34]) for i in range(0, 680, 34)]
    by_hand = np.float32([scale * x for scale, *block in blocks for x in block])
    assert np.array_equal(weights["model.embed_tokens.weight"][9259], to_bf16(by_hand))

    stored = np.frombuffer(data, "<f4", 640, file.tensors["blk.0.attn_norm.weight"].offset)
    assert np.array_equal(weights["model.layers.0.input_layernorm.weight"], to_bf16(stored - 1))


def test_the_real_config(model_dir: Path) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    expected = {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
                "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "max_position_embeddings": 32768,
                "vocab_size": 262144, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
                "tie_word_embeddings": True, "eos_token_id": [1, 106]}  # fmt: skip
    assert {key: config[key] for key in expected} == expected
    full = [i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    assert full == [5, 11, 17]  # B30: one layer in six, counted from one
    assert config["rope_parameters"]["full_attention"]["rope_theta"] == 1e6
    assert config["rope_parameters"]["sliding_attention"]["rope_theta"] == 1e4


def test_the_reader_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = write_gemma3(tmp_path / "tiny.gguf")
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    assert {name for name in theirs.fields if not name.startswith("GGUF.")} == set(ours.fields)
    for name, value in ours.fields.items():
        other = theirs.fields[name].contents()
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == other, name
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].offset == tensor.data_offset
        assert np.array_equal(
            ours.read(ours.tensors[tensor.name]), gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        )


def test_truncated_anywhere_is_one_error(tmp_path: Path) -> None:
    data = write_gemma3(tmp_path / "tiny.gguf").read_bytes()
    for length in [0, 3, 4, 8, 23, 24, 40, 100, 1000, 5000, 9000, 20000, len(data) // 2, len(data) - 40]:
        (tmp_path / "cut.gguf").write_bytes(data[:length])
        with pytest.raises(BadInputError):
            convert(tmp_path / "cut.gguf", tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.gguf", "tiny.gguf"]


@pytest.fixture(scope="module")
def damaged_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma3(tmp_path_factory.mktemp("damaged") / "tiny.gguf")


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 600), value=st.integers(0, 255))
def test_damaged_headers_never_crash(damaged_file: Path, position: int, value: int) -> None:
    """One byte of the header changed: either still readable, or BadInputError; never another exception."""
    with damaged_file.open("r+b") as file:
        file.seek(position)
        before = file.read(1)
        file.seek(position)
        file.write(bytes([value]))
    try:
        GgufFile(damaged_file)
    except BadInputError as error:
        assert "\n" not in str(error)
    with damaged_file.open("r+b") as file:
        file.seek(position)
        file.write(before)


HEADER = b"GGUF" + struct.pack("<I", 3)
HUGE = (1 << 64) - 1


@pytest.mark.parametrize(("data", "message"), [
    (b"GGML" + bytes(40), "magic"),
    (b"GGUF" + struct.pack("<I", 9) + bytes(40), "version 9"),
    (HEADER + struct.pack("<QQ", HUGE, 0), "tensor count"),
    (HEADER + struct.pack("<QQ", 0, HUGE), "metadata count"),
    (HEADER + struct.pack("<QQQ", 0, 1, HUGE), "string length"),
    (HEADER + struct.pack("<QQQ1sI", 0, 1, 1, b"k", 99), "metadata type 99"),
    (HEADER + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 4, HUGE), "array length"),
    (HEADER + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 9, 1), "element type 9"),
    (HEADER + struct.pack("<QQQ2s", 0, 1, 2, b"\xff\xfe"), "UTF-8"),
    (HEADER + struct.pack("<QQQ1sI", 1, 0, 1, b"t", 99), "rank 99"),
    (HEADER + struct.pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, HUGE // 4, 0, 0), "truncated"),
    (HEADER + struct.pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, 33, 2, 0), "multiple of 32"),
    (HEADER + struct.pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, 32, 999, 0), "type 999"),
])  # fmt: skip
def test_hostile_headers(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(BadInputError, match=message):
        GgufFile(tmp_path / "bad.gguf")


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    source = write_gemma3(tmp_path / "tiny.gguf")

    def stop(done: int, total: int) -> None:
        if 2 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "model", stop)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_an_existing_folder_is_kept(tiny_dir: Path, tmp_path: Path) -> None:
    before = sorted(tiny_dir.iterdir())
    with pytest.raises(BadInputError, match="does not exist yet"):
        convert(write_gemma3(tmp_path / "tiny.gguf"), tiny_dir)
    assert sorted(tiny_dir.iterdir()) == before


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadInputError, match=r"general\.architecture llama: expected gemma3 or gemma4"):
        convert(tmp_path / "x.gguf", tmp_path / "model")
