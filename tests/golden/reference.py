"""What the golden scripts share: transformers as the reference, run in float32.

Embedding scale. transformers multiplies the embedding by sqrt(hidden_size) cast to the dtype of the *loaded* weights. A
BF16 checkpoint run in BF16 therefore uses the rounded value (270M: 25.25), but loaded as float32 it would use 25.2982.
Quaver always uses the checkpoint's, so round_embedding_scale() overwrites the buffer with the BF16 value.

BF16 cache. Quaver keeps activations in FP32 but stores K and V as BF16. Bf16KvCache rounds them at the same point
(K after norm and RoPE, V after its norm). So there are two sets of values: `f32`, transformers as it is, and `kv_bf16`,
the same arithmetic as ours. The first bounds what the cache costs, the second shows that nothing else differs.
"""

import torch
from transformers import DynamicCache, PreTrainedModel


class Bf16KvCache(DynamicCache):
    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        key_states, value_states = key_states.bfloat16().float(), value_states.bfloat16().float()
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


CACHES = {"f32": DynamicCache, "kv_bf16": Bf16KvCache}


def load(model_class: type[PreTrainedModel], folder) -> PreTrainedModel:
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    round_embedding_scale(model)
    return model


def round_embedding_scale(model: PreTrainedModel) -> None:
    scale = torch.tensor(model.config.hidden_size**0.5).bfloat16()
    model.model.embed_tokens.embed_scale.fill_(scale.float())


@torch.no_grad()
def logits(model: PreTrainedModel, ids: list[int], cache: type[DynamicCache]) -> torch.Tensor:
    """[T, vocab] of one sequence, prefilled at once."""
    past = cache(config=model.config)
    return model(torch.tensor([ids]), past_key_values=past, use_cache=True).logits[0]


def relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return float((ours - reference).norm() / reference.norm())
