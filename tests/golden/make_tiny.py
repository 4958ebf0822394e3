"""Makes gemma3_tiny/ and gemma4_tiny/: random checkpoints of a few hundred thousand BF16 weights in the Hub's file
format, and transformers' logits of every position of two prompts (expected.npz).

    python make_tiny.py        (torch 2.11, transformers 5.17)

Weights are drawn so that every term of the forward pass counts. The script proves it: each entry of *_MUTATIONS removes
or misreads one feature and must move the logits by more than MIN_EFFECT, far above the 1e-4 that the tests allow.
"""

import json
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import reference
import torch
from safetensors.torch import save_file
from transformers import (
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma4ForCausalLM,
    PreTrainedModel,
)
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma4 import modeling_gemma4

HERE = Path(__file__).parent
MIN_EFFECT = 5e-4  # relative L2 of all logits of both prompts
PROMPT_LENGTHS = (61, 37)  # both leave the window of 24
LAYER_TYPES = ["sliding_attention", "sliding_attention", "full_attention"] * 2

COMMON = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": len(LAYER_TYPES),
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "sliding_window": 24,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "layer_types": LAYER_TYPES,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}

# Like the 27B: linear RoPE scaling on the full layers, a query scale that is hidden/heads and not head_dim, and the
# field names of the Hub's files.
GEMMA3 = COMMON | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "torch_dtype": "bfloat16",
    "query_pre_attn_scalar": 24,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}

# Like the 31B at an eighth: K=V on the full layers, which have twice the head dim and half the kv heads.
GEMMA4_TEXT = COMMON | {
    "model_type": "gemma4_text",
    "dtype": "bfloat16",
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "final_logit_softcapping": 30.0,
    "use_bidirectional_attention": "vision",
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1000000.0,
            "partial_rotary_factor": 0.25,
        },
    },
}


def random_state(model: PreTrainedModel, norm_offset: float, seed: int) -> dict[str, torch.Tensor]:
    """Effective norm weights are norm_offset + w."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name == "lm_head.weight":
            continue
        if name.endswith("layer_scalar"):
            value = 1 + 0.3 * noise.clamp(-1.5, 1.5)
        elif "embed_tokens" in name:
            value = 0.7 * noise
        elif "q_norm" in name or "k_norm" in name:
            value = 0.7 * (1 + 0.3 * noise) - norm_offset
        elif name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            value = 2.5 * (1 + 0.3 * noise) - norm_offset  # the residual stream starts at 0.7 * 9.8
        elif "norm" in name:
            value = 1 + 0.3 * noise - norm_offset
        else:
            value = noise * tensor.shape[1] ** -0.5
        state[name] = value.bfloat16()
    return state


def kv_scales(seed: int) -> dict[str, torch.Tensor]:
    """In compressed-tensors' spelling. Nothing clips: |k| and |v| stay below 448 * 0.02."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"model.layers.{layer}.self_attn.{which}_scale": 0.02 * (1 + torch.rand(1, generator=generator))
        for layer in range(len(LAYER_TYPES))
        for which in "kv"
    }


def prompts(vocab_size: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [[2, *torch.randint(3, vocab_size, (n - 1,), generator=generator).tolist()] for n in PROMPT_LENGTHS]


def save(state: dict[str, torch.Tensor], folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(state, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes 0600


@contextmanager
def patched(owner, name: str, value):
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def attention_modules(model: PreTrainedModel, full: bool | None = None) -> list[torch.nn.Module]:
    return [layer.self_attn for layer in model.model.layers if full is None or full != layer.self_attn.is_sliding]


def fill(tensors, value: float) -> None:
    for tensor in tensors:
        tensor.data.fill_(value)


def interleave_heads(states: torch.Tensor, repeats: int) -> torch.Tensor:
    return states.repeat(1, repeats, 1, 1)


def rms_norm_without_offset(norm, x):
    return norm._norm(x.float()) * norm.weight


def rms_norm_with_offset(norm, x):
    return norm._norm(x.float()) * ((1 + norm.weight) if norm.with_scale else 1)


def normed_keys_as_values(model: PreTrainedModel) -> None:
    """V of a K=V layer read after k_norm, a fault seen elsewhere (B27)."""
    for attention in attention_modules(model, full=True):
        attention.v_norm.forward = lambda x, a=attention: a.k_norm(x)


def set_inv_freq(model: PreTrainedModel, kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    rotary = model.model.rotary_emb
    setattr(rotary, f"{kind}_inv_freq", change(getattr(rotary, f"{kind}_inv_freq")))


def geometric(theta: float, size: int) -> torch.Tensor:
    return theta ** -(torch.arange(size, dtype=torch.float) / size)


# What is done to a fresh model; MODULE_MUTATIONS swap a function of the modelling file instead.
SHARED_MUTATIONS: dict[str, Callable[[PreTrainedModel], None]] = {
    "embedding scale not rounded": lambda m: m.model.embed_tokens.embed_scale.fill_(m.config.hidden_size**0.5),
    "no q_norm weight": lambda m: fill((a.q_norm.weight for a in attention_modules(m)), 0.7 - m.norm_offset),
    "no k_norm weight": lambda m: fill((a.k_norm.weight for a in attention_modules(m)), 0.7 - m.norm_offset),
    "no post-attention norm weight": lambda m: fill(
        (x.post_attention_layernorm.weight for x in m.model.layers), 2.5 - m.norm_offset
    ),
    "window of 25": lambda m: setattr(m.config, "sliding_window", 25),
    "window of 23": lambda m: setattr(m.config, "sliding_window", 23),
    "no window": lambda m: setattr(m.config, "sliding_window", 1000),
    "attention scale head_dim^-0.5": lambda m: [setattr(a, "scaling", a.head_dim**-0.5) for a in attention_modules(m)],
    "local theta on full layers": lambda m: set_inv_freq(m, "full_attention", lambda f: geometric(1e4, len(f))),
    "full theta on local layers": lambda m: set_inv_freq(m, "sliding_attention", lambda f: geometric(1e6, len(f))),
}
GEMMA3_MUTATIONS = SHARED_MUTATIONS | {
    "no RoPE scaling": lambda m: set_inv_freq(m, "full_attention", lambda f: f * 8),
    "RoPE scaling on local layers": lambda m: set_inv_freq(m, "sliding_attention", lambda f: f / 8),
}
GEMMA4_MUTATIONS = SHARED_MUTATIONS | {
    "no layer_scalar": lambda m: fill((x.layer_scalar for x in m.model.layers), 1.0),
    "no softcap": lambda m: setattr(m.config, "final_logit_softcapping", None),
    "no v_norm": lambda m: [setattr(a.v_norm, "forward", lambda x: x) for a in attention_modules(m)],
    "V after k_norm": normed_keys_as_values,
    "full RoPE on full layers": lambda m: set_inv_freq(m, "full_attention", lambda f: geometric(1e6, len(f))),
    "partial RoPE over its own dims": lambda m: set_inv_freq(
        m,
        "full_attention",
        lambda f: torch.cat((geometric(1e6, int((f > 0).sum())), f[f == 0])),
    ),
}
MODULE_MUTATIONS = {"kv heads interleaved": ("repeat_kv", interleave_heads)}


def make(
    name: str,
    config: dict,
    model_class,
    modelling,
    rms_norm,
    norm_mutation,
    norm_offset,
    mutations,
    seed,
) -> None:
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    text_config = config.get("text_config", config)
    prefix = "model.language_model." if "text_config" in config else "model."
    hf_config = model_class.config_class(**text_config)
    state = random_state(model_class(hf_config), norm_offset, seed)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    scales = kv_scales(seed + 2)
    save(
        {key.replace("model.", prefix, 1): value for key, value in (state | scales).items()},
        folder,
    )

    def fresh() -> PreTrainedModel:
        config = model_class.config_class(**text_config, attn_implementation="eager")
        model = model_class(config).eval()
        missing, unexpected = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
        assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
        model.tie_weights()
        model.norm_offset = norm_offset
        reference.round_embedding_scale(model)
        return model

    fp8_cache = reference.fp8_kv_cache(*([x for n, x in scales.items() if n.endswith(f"{w}_scale")] for w in "kv"))
    for attempt in range(100):  # a prompt without near ties exists within a few draws
        fp8_cache.near_ties = 0
        ids = prompts(COMMON["vocab_size"], seed + 100 + attempt)
        kv_fp8 = [reference.logits(fresh(), prompt, fp8_cache) for prompt in ids]
        if fp8_cache.near_ties == 0:
            break
    assert fp8_cache.near_ties == 0

    def all_logits(model: PreTrainedModel, cache=DynamicCache) -> list[torch.Tensor]:
        return [reference.logits(model, prompt, cache) for prompt in ids]

    expected = {name: all_logits(fresh(), cache) for name, cache in reference.CACHES.items()} | {"kv_fp8": kv_fp8}
    plain = torch.cat(expected["f32"])
    print(f"{name}, prompts of draw {attempt}")
    for cache in ("kv_bf16", "kv_fp8"):
        print(f"  {cache}: {reference.relative(torch.cat(expected[cache]), plain):.1e}")

    def check_effect(what: str, model: PreTrainedModel) -> None:
        effect = reference.relative(torch.cat(all_logits(model)), plain)
        print(f"  {what}: {effect:.1e}")
        assert effect > MIN_EFFECT, what

    for what, mutate in mutations.items():
        model = fresh()
        mutate(model)
        check_effect(what, model)
    for what, (function, replacement) in MODULE_MUTATIONS.items():
        with patched(modelling, function, replacement):
            check_effect(what, fresh())
    with patched(rms_norm, "forward", norm_mutation):
        check_effect("norm weight offset of the other family", fresh())

    arrays = {f"ids_{i}": np.array(prompt, np.int32) for i, prompt in enumerate(ids)}
    arrays |= {f"{cache}_{i}": x.numpy() for cache, logits in expected.items() for i, x in enumerate(logits)}
    np.savez_compressed(folder / "expected.npz", **arrays)


def main() -> None:
    torch.set_num_threads(1)
    make(
        "gemma3_tiny", GEMMA3, Gemma3ForCausalLM, modeling_gemma3, modeling_gemma3.Gemma3RMSNorm,
        rms_norm_without_offset, 1.0, GEMMA3_MUTATIONS, seed=3,
    )  # fmt: skip
    gemma4 = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "text_config": GEMMA4_TEXT,
        "tie_word_embeddings": True,
        "eos_token_id": [1, 106],
    }
    make(
        "gemma4_tiny", gemma4, Gemma4ForCausalLM, modeling_gemma4, modeling_gemma4.Gemma4RMSNorm,
        rms_norm_with_offset, 0.0, GEMMA4_MUTATIONS, seed=4,
    )  # fmt: skip


if __name__ == "__main__":
    main()
