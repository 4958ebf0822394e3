"""Makes gemma3_tiny/spans.npz and gemma4_tiny/spans.npz: transformers' logits of every position of one prompt with
images in it, by the masks that its multimodal classes build. Run make_tiny.py first.

    python make_spans.py        (torch 2.11, transformers 5.17)

The script proves that the images count: reading them as text, or making them bidirectional on the wrong layers, must
move the logits by more than MIN_EFFECT.
"""

from pathlib import Path

import numpy as np
import reference
import torch
from make_tiny import GEMMA3, GEMMA4_TEXT, MIN_EFFECT
from safetensors.torch import load_file
from transformers import Gemma3ForCausalLM, Gemma4ForCausalLM
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma4 import modeling_gemma4

HERE = Path(__file__).parent
LENGTH = 90
# Longer than the window of 24, at the start, next to each other, of one token, at the end.
SPANS = [(0, 3), (10, 43), (43, 50), (61, 62), (84, 90)]
CAUSAL_FULL = "full layers causal"  # right for Gemma 4
SPANS_ON_FULL = "images bidirectional on full layers"  # right for Gemma 3


def block_ids() -> torch.Tensor:
    ids = torch.full((1, LENGTH), -1)
    for number, (first, last) in enumerate(SPANS):
        ids[0, first:last] = number
    return ids


@torch.no_grad()
def logits(model, modelling, ids: torch.Tensor, blocks: torch.Tensor, cache, fault: str = "") -> torch.Tensor:
    """[T, vocab]. `fault` gives the full layers a mask that is not theirs."""
    masks = modelling.create_masks_for_vision_model(
        config=model.config,
        inputs_embeds=model.model.embed_tokens(ids),
        attention_mask=None,
        past_key_values=None,
        position_ids=torch.arange(LENGTH)[None],
        block_sequence_ids=blocks,
    )
    if fault:
        seen = torch.tril(torch.ones(LENGTH, LENGTH)) > 0
        if fault == SPANS_ON_FULL:
            seen |= (blocks[0][:, None] == blocks[0]) & (blocks[0] >= 0)
        masks["full_attention"] = torch.where(seen, 0.0, -torch.inf)[None, None]
    return model(ids, attention_mask=masks, past_key_values=cache(config=model.config), use_cache=True).logits[0]


def make(name: str, config: dict, model_class, modelling, fault: str, seed: int) -> None:
    tensors = {
        key.replace("model.language_model.", "model."): x
        for key, x in load_file(HERE / name / "model.safetensors").items()
    }
    model = model_class(model_class.config_class(**config, attn_implementation="eager")).eval()
    model.load_state_dict({k: x.float() for k, x in tensors.items() if not k.endswith("_scale")}, strict=False)
    model.tie_weights()
    reference.round_embedding_scale(model)
    scales = [
        [tensors[f"model.layers.{layer}.self_attn.{w}_scale"] for layer in range(len(model.model.layers))] for w in "kv"
    ]
    fp8_cache = reference.fp8_kv_cache(*scales)
    for attempt in range(100):  # a prompt without near ties exists within a few draws
        fp8_cache.near_ties = 0
        generator = torch.Generator().manual_seed(seed + attempt)
        ids = torch.randint(3, config["vocab_size"], (1, LENGTH), generator=generator)
        expected = logits(model, modelling, ids, block_ids(), fp8_cache)
        if fp8_cache.near_ties == 0:
            break
    assert fp8_cache.near_ties == 0
    for blocks, misread in ((torch.full((1, LENGTH), -1), ""), (block_ids(), fault)):
        effect = reference.relative(logits(model, modelling, ids, blocks, fp8_cache, misread), expected)
        print(f"{name}, {misread or 'images as text'}: {effect:.1e}")
        assert effect > MIN_EFFECT
    np.savez_compressed(
        HERE / name / "spans.npz",
        ids=ids[0].numpy().astype(np.int32),
        spans=np.array(SPANS, np.int32),
        kv_fp8=expected.numpy(),
    )


def main() -> None:
    torch.set_num_threads(1)
    make("gemma3_tiny", GEMMA3, Gemma3ForCausalLM, modeling_gemma3, CAUSAL_FULL, seed=33)
    make("gemma4_tiny", GEMMA4_TEXT, Gemma4ForCausalLM, modeling_gemma4, SPANS_ON_FULL, seed=34)


if __name__ == "__main__":
    main()
