"""`quaver explain`: asks the attention policy (src/attention/policy.cpp) and prints its decision."""

from __future__ import annotations

from argparse import Namespace

from quaver import _quaver


def run(options: Namespace) -> int:
    layout = _quaver.KvLayout(
        dtype=options.kv_cache_dtype,
        num_kv_heads=options.kv_heads,
        head_dim_k=options.head_dim,
        head_dim_v=options.v_head_dim,
        page_size=options.block_size,
    )
    problem = _quaver.attention_problem(
        arch=options.arch,
        num_q_heads=options.q_heads,
        kv=layout,
        max_query_len=options.max_query_len,
        window=options.window,
        causal=not options.non_causal,
        softcap=options.softcap,
        sinks=options.sinks,
        bidirectional_spans=options.bidirectional_spans,
        batch_invariant=options.batch_invariant,
        precision=options.precision,
        kernel=options.kernel,
    )
    print(_quaver.explain(problem).rstrip())
    return 0
