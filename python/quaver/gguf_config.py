"""config.json and generation_config.json of Gemma 3 and Gemma 4 from GGUF metadata."""

from __future__ import annotations

from typing import Any

from quaver.errors import BadInputError
from quaver.gguf_file import GgufFile, GgufTensor

_MAX_LAYERS = 4096


class _Keys:
    """Typed access to `<architecture>.<name>`; BadInputError names the key that is missing or of the wrong type."""

    def __init__(self, gguf: GgufFile) -> None:
        self.architecture = gguf.fields.get("general.architecture")
        if self.architecture not in ("gemma3", "gemma4"):
            raise BadInputError(f"general.architecture {self.architecture}: expected gemma3 or gemma4")
        self._fields = gguf.fields

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(f"{self.architecture}.{name}", default)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or value <= 0:
            raise BadInputError(f"metadata {self.architecture}.{name} {value}: expected a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or not value > 0:
            raise BadInputError(f"metadata {self.architecture}.{name} {value}: expected a positive number")
        return float(value)

    def per_layer(self, name: str, layers: int) -> list[int]:
        """One value for every layer: GGUF has a single number or an array."""
        value = self.get(name)
        values = [value] * layers if isinstance(value, int) else [] if value is None else [int(x) for x in value]
        if len(values) != layers or any(x < 0 for x in values):
            raise BadInputError(f"metadata {self.architecture}.{name} {value}: expected a number or {layers} numbers")
        return values


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """config.json as transformers writes it for the text model."""
    keys = _Keys(gguf)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise BadInputError(f"{gguf.path}: expected a matrix token_embd.weight")
    layers = keys.integer("block_count")
    if layers > _MAX_LAYERS:
        raise BadInputError(f"metadata {keys.architecture}.block_count {layers}: expected at most {_MAX_LAYERS}")
    config = {
        "vocab_size": embedding.shape[0],
        "hidden_size": keys.integer("embedding_length"),
        "intermediate_size": max(keys.per_layer("feed_forward_length", layers)),
        "num_hidden_layers": layers,
        "num_attention_heads": keys.integer("attention.head_count"),
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": float(f"{keys.number('attention.layer_norm_rms_epsilon'):.6g}"),  # float32 in the file
        "sliding_window": keys.integer("attention.sliding_window"),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": 2,
        "pad_token_id": 0,
        "dtype": "bfloat16",
    }
    if keys.architecture == "gemma3":
        return config | _gemma3(keys, config)
    return config | _gemma4(keys, config, gguf.tensors)


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    """Gemma's published sampling defaults, and every id that ends a turn."""
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return ids | {"do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95}


def _gemma3(keys: _Keys, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    pattern = keys.integer("attention.sliding_window_pattern", 6)
    head_dim = keys.integer("attention.key_length", 256)
    # 27B alone has 62 layers and scales by hidden/heads = 168, which GGUF does not say.
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == 62 else head_dim
    full = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base", 1e6)}
    if keys.get("rope.scaling.type") == "linear":
        full |= {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_key_value_heads": keys.integer("attention.head_count_kv"),
        "head_dim": head_dim,
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": keys.get("attn_logit_softcapping"),
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
        "layer_types": _layer_types([(i + 1) % pattern != 0 for i in range(layers)]),
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 1e4)},
        },
        "eos_token_id": [1, 106],
    }


def _gemma4(keys: _Keys, config: dict[str, Any], tensors: dict[str, GgufTensor]) -> dict[str, Any]:
    for name in ("expert_count", "embedding_length_per_layer_input", "attention.shared_kv_layers"):
        if keys.get(name, 0):
            raise BadInputError(f"metadata gemma4.{name} {keys.get(name)}: expected a dense model without it")
    layers = config["num_hidden_layers"]
    sliding = [bool(x) for x in keys.per_layer("attention.sliding_window_pattern", layers)]
    kv_heads = keys.per_layer("attention.head_count_kv", layers)
    local = {heads for heads, is_local in zip(kv_heads, sliding, strict=True) if is_local}
    whole = {heads for heads, is_local in zip(kv_heads, sliding, strict=True) if not is_local}
    if len(local) > 1 or len(whole) != 1:
        raise BadInputError(f"metadata gemma4.attention.head_count_kv {kv_heads}: expected one number per layer kind")
    full_heads = whole.pop()
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "num_key_value_heads": local.pop() if local else full_heads,
        "num_global_key_value_heads": full_heads,
        "head_dim": keys.integer("attention.key_length_swa", 256),
        "global_head_dim": keys.integer("attention.key_length", 512),
        "attention_k_eq_v": any(
            not is_sliding and f"blk.{layer}.attn_v.weight" not in tensors for layer, is_sliding in enumerate(sliding)
        ),
        "final_logit_softcapping": keys.get("final_logit_softcapping"),
        "layer_types": _layer_types(sliding),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": keys.number("rope.freq_base", 1e6),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 1e4)},
        },
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "enable_moe_block": False,
        "use_bidirectional_attention": None,
        "eos_token_id": [1, 106, 50],
    }


def _layer_types(sliding: list[bool]) -> list[str]:
    return ["sliding_attention" if is_sliding else "full_attention" for is_sliding in sliding]
