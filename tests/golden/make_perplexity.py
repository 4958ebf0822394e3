"""Makes opticks_logprobs.npz: the log probability of every token of tests/data/opticks.txt given all before it, by
transformers in float32 with the weights that `quaver convert` writes, once for each cache of reference.CACHES.

    quaver convert gemma-3-270m-q4_k_m.gguf DIR
    python make_perplexity.py DIR        (torch 2.11, transformers 5.17; minutes on two cores, 6 GB)
"""

import argparse
from pathlib import Path

import numpy as np
import reference
import torch
from fingerprint import weights_sha256
from tokenizers import Tokenizer
from transformers import Gemma3ForCausalLM

HERE = Path(__file__).parent
BOS = 2
ROWS_AT_ONCE = 256


@torch.no_grad()
def logprobs(model, ids: list[int], cache: str) -> np.ndarray:
    past = reference.CACHES[cache](config=model.config)
    hidden = model.model(torch.tensor([ids]), past_key_values=past, use_cache=True).last_hidden_state[0]
    parts = []
    for start in range(0, len(ids) - 1, ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, len(ids) - 1)
        rows = model.lm_head(hidden[start:end]).log_softmax(dim=-1)
        parts.append(rows.gather(1, torch.tensor(ids[start + 1 : end + 1])[:, None])[:, 0])
    return torch.cat(parts).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder that `quaver convert` wrote")
    args = parser.parse_args()
    text = (HERE.parent / "data" / "opticks.txt").read_text()
    ids = [
        BOS,
        *Tokenizer.from_file(str(args.model / "tokenizer.json")).encode(text, add_special_tokens=False).ids,
    ]
    model = reference.load(Gemma3ForCausalLM, args.model)
    values = {}
    for cache in reference.CACHES:
        values[cache] = logprobs(model, ids, cache)
        perplexity = np.exp(-values[cache].mean(dtype=np.float64))
        print(f"{cache}: {len(ids)} tokens, perplexity {perplexity:.4f}", flush=True)
    np.savez_compressed(
        HERE / "opticks_logprobs.npz",
        ids=np.array(ids, np.int32),
        weights_sha256=weights_sha256(args.model),
        **values,
    )


if __name__ == "__main__":
    main()
