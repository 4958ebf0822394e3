"""Makes gemma3_270m.npz: what transformers computes in float32 with the weights that `quaver convert` writes.

    quaver convert gemma-3-270m-q4_k_m.gguf DIR
    python make_gemma3_270m.py DIR        (torch 2.11, transformers 5.17; minutes on two cores)

For each of PROMPTS (index i) and each cache of reference.CACHES (c):
    ids_i           prompt tokens
    greedy_i        NUM_GREEDY greedy tokens after the prompt (the same for both caches, asserted)
    c_sample_i      logits after the last prompt token, every STRIDE-th vocabulary entry
    c_norm_i        their L2 norm over the whole vocabulary
    c_top_ids_i     [1 + NUM_GREEDY, TOP]: the largest logits after the prompt and after each greedy token, descending
    c_top_i         their values
`weights_sha256` says which weights, see fingerprint.py.
"""

import argparse
from pathlib import Path

import numpy as np
import reference
import torch
from fingerprint import weights_sha256
from tokenizers import Tokenizer
from transformers import DynamicCache, Gemma3ForCausalLM

HERE = Path(__file__).parent
TEXT = (HERE.parent / "data" / "opticks.txt").read_text()
NUM_GREEDY, STRIDE, TOP = 64, 61, 8
MIN_GAP = 0.005  # between the two largest logits, at every greedy step: a tie would test nothing
BOS = 2

PROMPTS = {
    "raw": "The capital of France is",
    "chat": "<start_of_turn>user\nWhy is the sky blue?<end_of_turn>\n<start_of_turn>model\n",
    "code": 'def binary_search(items: list[int], wanted: int) -> int:\n    """Index of wanted, or -1."""\n',
    "Russian": "Гравитация — это сила, которая притяги",
    "leaves the window": TEXT[:3600],
}


@torch.no_grad()
def greedy(model, ids: list[int]) -> list[int]:
    past, tokens, new = DynamicCache(config=model.config), [], ids
    for _ in range(NUM_GREEDY):
        row = model(torch.tensor([new]), past_key_values=past, use_cache=True, logits_to_keep=1).logits[0, -1]
        tokens.append(int(row.argmax()))
        new = tokens[-1:]
    return tokens


def make_prompt(model, tokenizer: Tokenizer, name: str, index: int) -> dict[str, np.ndarray]:
    ids = [BOS, *tokenizer.encode(PROMPTS[name], add_special_tokens=False).ids]
    tokens = greedy(model, ids)
    print(f"{name}: {len(ids)} tokens, then {tokenizer.decode(tokens)!r}", flush=True)
    assert not {1, 106} & set(tokens), f"{name}: the model stops"
    arrays = {
        f"ids_{index}": np.array(ids, np.int32),
        f"greedy_{index}": np.array(tokens, np.int32),
    }
    plain = None
    for name_of_cache, cache in reference.CACHES.items():
        rows = reference.logits(model, ids + tokens, cache, keep=1 + NUM_GREEDY)
        best = rows.topk(TOP)
        gaps = best.values[:-1, 0] - best.values[:-1, 1]
        plain = rows if plain is None else plain
        change = (rows - plain).norm(dim=1) / plain.norm(dim=1)
        print(f"  {name_of_cache}: smallest gap {gaps.min():.3f}; from f32 {change[0]:.1e}, at most {change.max():.1e}")
        assert best.indices[:-1, 0].tolist() == tokens, f"{name}, {name_of_cache}: another greedy path"
        assert gaps.min() > MIN_GAP, f"{name}, {name_of_cache}: nearly a tie"
        arrays |= {
            f"{name_of_cache}_sample_{index}": rows[0, ::STRIDE].numpy(),
            f"{name_of_cache}_norm_{index}": rows[0].norm().numpy(),
            f"{name_of_cache}_top_ids_{index}": best.indices.numpy().astype(np.int32),
            f"{name_of_cache}_top_{index}": best.values.numpy(),
        }
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder that `quaver convert` wrote")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    model = reference.load(Gemma3ForCausalLM, args.model)

    arrays = {
        "weights_sha256": np.array(weights_sha256(args.model)),
        "names": np.array(list(PROMPTS)),
    }
    for index, name in enumerate(PROMPTS):
        arrays |= make_prompt(model, tokenizer, name, index)
    np.savez_compressed(HERE / "gemma3_270m.npz", **arrays)


if __name__ == "__main__":
    main()
