"""What the golden scripts share: transformers as the reference, run in float32.

Embedding scale. transformers multiplies the embedding by sqrt(hidden_size) cast to the dtype of the *loaded* weights. A
BF16 checkpoint run in BF16 therefore uses the rounded value (270M: 25.25), but loaded as float32 it would use 25.2982.
Quaver always uses the checkpoint's, so round_embedding_scale() overwrites the buffer with the BF16 value.

BF16 cache. Quaver keeps activations in FP32 but stores K and V as BF16. Bf16KvCache rounds them at the same point
(K after norm and RoPE, V after its norm). So there are two sets of values: `f32`, transformers as it is, and `kv_bf16`,
the same arithmetic as ours. The first bounds what the cache costs, the second shows that nothing else differs, but for
values that FP32 rounding moves to the other BF16 neighbour: a few in a prompt, each worth up to 1e-4 of the logits of a
tiny model. E4M3 has 32 times fewer ties, so with an FP8 cache and a prompt that has none within 1e-6 the comparison is
exact up to FP32 rounding (`kv_fp8`).
"""

import torch
from transformers import DynamicCache, PreTrainedModel


class Bf16KvCache(DynamicCache):
    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        key_states, value_states = (
            key_states.bfloat16().float(),
            value_states.bfloat16().float(),
        )
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


CACHES = {"f32": DynamicCache, "kv_bf16": Bf16KvCache}
E4M3_MAX = 448.0
TIE_DISTANCE = 1e-6


def to_e4m3(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """FP32 x times FP32 1/scale, rounded to nearest even, saturated."""
    return (x.float() * (1 / scale.float())).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def quantised(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return to_e4m3(x, scale).double() * scale.double()


def fp8_kv_cache(k_scales: list[torch.Tensor], v_scales: list[torch.Tensor]) -> type[DynamicCache]:
    """K and V quantised with one scale a layer; attention itself stays exact. `near_ties` counts values so close to the
    middle of two E4M3 codes that FP32 rounding elsewhere can turn them."""

    class Fp8KvCache(DynamicCache):
        near_ties = 0

        def update(self, key_states, value_states, layer_idx, *args, **kwargs):
            stored = []
            for states, scale in (
                (key_states, k_scales[layer_idx]),
                (value_states, v_scales[layer_idx]),
            ):
                above, below = (to_e4m3(states * (1 + d), scale).float() for d in (TIE_DISTANCE, -TIE_DISTANCE))
                Fp8KvCache.near_ties += int((above != below).sum())
                stored.append(quantised(states, scale).float())
            return super().update(*stored, layer_idx, *args, **kwargs)

    return Fp8KvCache


def load(model_class: type[PreTrainedModel], folder) -> PreTrainedModel:
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    round_embedding_scale(model)
    return model


def round_embedding_scale(model: PreTrainedModel) -> None:
    scale = torch.tensor(model.config.hidden_size**0.5).bfloat16()
    model.model.embed_tokens.embed_scale.fill_(scale.float())


@torch.no_grad()
def logits(model: PreTrainedModel, ids: list[int], cache: type[DynamicCache], keep: int = 0) -> torch.Tensor:
    """[T, vocab] of one sequence, prefilled at once; only the last `keep` rows if given."""
    past = cache(config=model.config)
    return model(torch.tensor([ids]), past_key_values=past, use_cache=True, logits_to_keep=keep).logits[0]


def relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return float((ours - reference).norm() / reference.norm())
