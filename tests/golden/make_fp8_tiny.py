"""Makes fp8_channel/, fp8_tensor/ and fp8_block/: one random two-layer Gemma 4 in the three FP8 recipes, each in the
spelling of the tool that writes it, and the logits of transformers with every linear layer replaced by an emulation.

    python make_fp8_tiny.py        (torch 2.11, transformers 5.17)

The emulation follows the recipe in words, in float64: the weight is stored * scale, the input is quantised to E4M3 in
FP32 with the scale of its token, tensor or group, and both are multiplied as real numbers.

No size is a multiple of 128, so every matrix has ragged scale blocks. As in make_tiny.py, misreading any scale must
move the logits by MIN_EFFECT, far more than the tests allow.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import make_tiny
import numpy as np
import reference
import torch
from reference import quantised, to_e4m3
from transformers import Gemma4ForCausalLM

HERE = Path(__file__).parent
MIN_EFFECT = 2e-2
BLOCK = 128
SEED = 8

TEXT = make_tiny.GEMMA4_TEXT | {
    "vocab_size": 200,
    "hidden_size": 144,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}


def scale_of(x: torch.Tensor, dims) -> torch.Tensor:
    return x.abs().amax(dims, keepdim=True).float() / reference.E4M3_MAX


def blocked(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """[N, K] zero-padded and cut into blocks: [N/rows, rows, K/columns, columns]."""
    x = torch.nn.functional.pad(x, (0, -x.shape[1] % columns, 0, -x.shape[0] % rows))
    return x.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns)


def expand(scale: torch.Tensor, rows: int, columns: int, shape: torch.Size) -> torch.Tensor:
    return scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]


def input_group_scales(x: torch.Tensor) -> torch.Tensor:
    return expand(scale_of(blocked(x, 1, BLOCK), (1, 3))[:, 0, :, 0], 1, BLOCK, x.shape)


@dataclass
class Recipe:
    config: dict  # quantization_config of config.json
    weight_scale: Callable[[torch.Tensor], torch.Tensor]  # [N, K] -> as stored
    expanded: Callable[[torch.Tensor, torch.Size], torch.Tensor]  # as stored -> one for every weight
    input: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (x [T, K], static scale) -> what is multiplied
    scale_name: str = "weight_scale"
    static_input: bool = False
    kv_scales: bool = False


def compressed_tensors_config() -> dict:
    shared = {"num_bits": 8, "type": "float", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "format": "float-quantized",
                "weights": shared | {"strategy": "channel", "dynamic": False},
                "input_activations": shared | {"strategy": "token", "dynamic": True},
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def modelopt_config() -> dict:
    static = {"dynamic": False, "num_bits": 8, "type": "float"}
    return {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "config_groups": {
            "group_0": {
                "input_activations": static,
                "weights": static,
                "targets": ["Linear"],
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": static,
        "producer": {"name": "modelopt", "version": "0.37.0"},
    }


RECIPES = {
    "fp8_channel": Recipe(
        config=compressed_tensors_config(),
        weight_scale=lambda w: scale_of(w, 1).bfloat16(),
        expanded=lambda scale, shape: scale.float().expand(shape),
        input=lambda x, _: quantised(x, scale_of(x, -1)),
    ),
    "fp8_tensor": Recipe(
        config=modelopt_config(),
        weight_scale=lambda w: scale_of(w, (0, 1)).reshape(()),
        expanded=lambda scale, shape: scale.expand(shape),
        input=quantised,
        static_input=True,
        kv_scales=True,
    ),
    "fp8_block": Recipe(
        config={
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": ["lm_head"],
        },
        weight_scale=lambda w: scale_of(blocked(w, BLOCK, BLOCK), (1, 3))[:, 0, :, 0],
        expanded=lambda scale, shape: expand(scale, BLOCK, BLOCK, shape),
        input=lambda x, _: quantised(x, input_group_scales(x)),
        scale_name="weight_scale_inv",
    ),
}


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def quantise(state: dict[str, torch.Tensor], recipe: Recipe) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors. Rows and columns of the weights get different sizes first, so that scales differ."""
    generator = torch.Generator().manual_seed(SEED + 2)
    out = {}
    for name, tensor in state.items():
        if not is_linear(name):
            out[name] = tensor
            continue
        weight = tensor.float() * (torch.arange(tensor.shape[0])[:, None] / tensor.shape[0] + 0.5)
        weight *= 1.6 - torch.arange(tensor.shape[1]) / tensor.shape[1]
        scale = recipe.weight_scale(weight)
        out[name] = to_e4m3(weight, recipe.expanded(scale, weight.shape))
        out[name.replace("weight", recipe.scale_name)] = scale
        if recipe.static_input:
            out[name.replace("weight", "input_scale")] = 0.01 * (1 + torch.rand((), generator=generator))
    if recipe.kv_scales:
        for layer in range(TEXT["num_hidden_layers"]):
            for which in "kv":  # modelopt writes v_proj.v_scale even where K=V and there is no v_proj
                scale = 0.02 * (1 + torch.rand((), generator=generator))
                out[f"model.layers.{layer}.self_attn.{which}_proj.{which}_scale"] = scale
    return out


def kv_cache(tensors: dict[str, torch.Tensor]):
    prefixes = [f"model.layers.{layer}.self_attn." for layer in range(TEXT["num_hidden_layers"])]
    return reference.fp8_kv_cache(
        [tensors[p + "k_proj.k_scale"] for p in prefixes],
        [tensors[p + "v_proj.v_scale"] for p in prefixes],
    )


def emulate(model: Gemma4ForCausalLM, tensors: dict[str, torch.Tensor], recipe: Recipe) -> None:
    for name, stored in tensors.items():
        if not is_linear(name):
            continue
        scale = recipe.expanded(tensors[name.replace("weight", recipe.scale_name)], stored.shape)
        weight = stored.double() * scale.double()
        static = tensors.get(name.replace("weight", "input_scale"))

        def forward(x, weight=weight, static=static):
            rows = x.reshape(-1, x.shape[-1])
            y = recipe.input(rows, static) @ weight.T
            return y.float().reshape(*x.shape[:-1], -1)

        model.get_submodule(name.removesuffix(".weight")).forward = forward


def fresh(state: dict[str, torch.Tensor]) -> Gemma4ForCausalLM:
    model = Gemma4ForCausalLM(Gemma4ForCausalLM.config_class(**TEXT, attn_implementation="eager")).eval()
    model.load_state_dict({k: v.float() for k, v in state.items() if not is_linear(k)}, strict=False)
    model.tie_weights()
    reference.round_embedding_scale(model)
    return model


def mutations(recipe: Recipe, tensors: dict[str, torch.Tensor]) -> dict[str, tuple[dict, Recipe]]:
    """What a loader could get wrong: (tensors, recipe) that it would then run."""

    def with_scales(change):
        return {k: change(v) if k.endswith(recipe.scale_name) else v for k, v in tensors.items()}

    def with_input(change):
        return replace(recipe, input=change)

    wrong = {
        "weight scale inverted": (
            with_scales(lambda s: (1 / s.float()).to(s.dtype)),
            recipe,
        ),
        "inputs not quantised": (tensors, with_input(lambda x, _: x.double())),
        "one weight scale for all": (
            with_scales(lambda s: s.float().mean().expand(s.shape).to(s.dtype)),
            recipe,
        ),
    }
    if recipe.static_input:
        del wrong["one weight scale for all"]
        wrong["input scale ignored"] = (
            tensors,
            with_input(lambda x, _: quantised(x, torch.ones(()))),
        )
    else:
        wrong["one input scale"] = (
            tensors,
            with_input(lambda x, _: quantised(x, scale_of(x, (0, 1)))),
        )
        wrong["scales reversed"] = (with_scales(lambda s: s.flip(0)), recipe)
    return wrong


def make(name: str, recipe: Recipe, state: dict[str, torch.Tensor], ids: list[list[int]]) -> None:
    tensors = quantise(state, recipe)

    def run(tensors, recipe, cache=reference.Bf16KvCache) -> list[torch.Tensor]:
        model = fresh(state)
        emulate(model, tensors, recipe)
        return [reference.logits(model, prompt, cache) for prompt in ids]

    expected = {"kv_bf16": run(tensors, recipe)}
    print(name)
    if recipe.kv_scales:
        expected["kv_fp8"] = run(tensors, recipe, kv_cache(tensors))
        effect = reference.relative(torch.cat(expected["kv_fp8"]), torch.cat(expected["kv_bf16"]))
        print(f"  FP8 cache: {effect:.1e}")
    for what, (wrong_tensors, wrong_recipe) in mutations(recipe, tensors).items():
        effect = reference.relative(torch.cat(run(wrong_tensors, wrong_recipe)), torch.cat(expected["kv_bf16"]))
        print(f"  {what}: {effect:.1e}")
        assert not effect < MIN_EFFECT, what

    folder = HERE / name
    folder.mkdir(exist_ok=True)
    config = TEXT | {
        "architectures": ["Gemma4ForCausalLM"],
        "quantization_config": recipe.config,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    make_tiny.save({k: v.contiguous() for k, v in tensors.items()}, folder)
    arrays = {f"ids_{i}": np.array(prompt, np.int32) for i, prompt in enumerate(ids)}
    arrays |= {f"{cache}_{i}": x.numpy() for cache, logits in expected.items() for i, x in enumerate(logits)}
    np.savez_compressed(folder / "expected.npz", **arrays)


def main() -> None:
    torch.set_num_threads(1)
    model = Gemma4ForCausalLM(Gemma4ForCausalLM.config_class(**TEXT))
    state = make_tiny.random_state(model, norm_offset=0.0, seed=SEED)
    ids = make_tiny.prompts(TEXT["vocab_size"], SEED + 1)
    for name, recipe in RECIPES.items():
        make(name, recipe, state, ids)


if __name__ == "__main__":
    main()
