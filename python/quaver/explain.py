"""`quaver explain`: asks the attention policy (src/attention/policy.cpp) and prints its decision, for one shape or for
every kind of layer of a model, with what that model needs of a GPU's memory."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from quaver import _quaver
from quaver.errors import BadInputError


def run(options: Namespace) -> int:
    if options.model is None:
        print(_of_shape(options))
    else:
        print(_of_model(options))
    return 0


def _of_shape(options: Namespace) -> str:
    for name in ("q_heads", "kv_heads", "head_dim"):
        if getattr(options, name) is None:
            raise BadInputError(f"--{name.replace('_', '-')}: expected a number, or --model DIR")
    layout = _quaver.KvLayout(
        dtype=options.kv_cache_dtype,
        num_kv_heads=options.kv_heads,
        head_dim_k=options.head_dim,
        head_dim_v=options.v_head_dim,
        page_size=options.block_size,
    )
    return _explain(options, layout, q_heads=options.q_heads, window=options.window, softcap=options.softcap)


def _of_model(options: Namespace) -> str:
    config = _quaver.load_model_config(options.model, options.hf_overrides)
    kinds: dict[str, list[Any]] = {}
    for group in _quaver.cache_groups(config, options.kv_cache_dtype, options.block_size):
        layout, visible = group.layout, f"window {group.window}" if group.window else "full attention"
        name = f"{visible}, {config.num_q_heads} q heads, {layout.num_kv_heads} kv heads of {layout.head_dim_k}"
        kinds.setdefault(name, []).append(group)
    parts = [f"{options.model.resolve().name}: {config.num_layers} layers"]
    for name, groups in kinds.items():
        explanation = _explain(options, groups[0].layout, q_heads=config.num_q_heads, window=groups[0].window,
                               softcap=config.attention_softcap)  # fmt: skip
        parts.append(f"{sum(len(group.layers) for group in groups)} layers: {name}\n{explanation}")
    if options.arch:
        length = options.max_model_len or config.max_positions
        memory = _quaver.device_memory(
            config, options.kv_cache_dtype, options.block_size, length, options.max_num_batched_tokens,
            options.max_num_seqs,
        )  # fmt: skip
        parts.append(f"memory, sequences of {length} tokens: {memory}")
    return "\n\n".join(parts)


def _explain(options: Namespace, layout: Any, *, q_heads: int, window: int, softcap: float) -> str:
    problem = _quaver.attention_problem(
        arch=options.arch,
        num_q_heads=q_heads,
        kv=layout,
        max_query_len=options.max_query_len,
        window=window,
        causal=not options.non_causal,
        softcap=softcap,
        sinks=options.sinks,
        bidirectional_spans=options.bidirectional_spans,
        batch_invariant=options.batch_invariant,
        precision=options.precision,
        kernel=options.kernel,
    )
    return str(_quaver.explain(problem)).rstrip()
