"""`quaver generate`: one prompt, the answer streamed to stdout, then one line of figures on stderr."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from quaver import _quaver
from quaver.engine_generator import EngineGenerator
from quaver.errors import BadInputError
from quaver.model_folder import tokenizer_folder
from quaver.progress import SlowTask
from quaver.tokenizer import TextStream, Tokenizer, stop_ids


def run(options: Namespace) -> int:
    tokenizer = Tokenizer(tokenizer_folder(options.model, options.tokenizer))
    prompt = encode(tokenizer, options)
    config = _quaver.load_model_config(options.model, options.hf_overrides)
    check_length(len(prompt), options.max_tokens, config.max_positions)
    _quaver.check_sampling(options.temperature, options.top_k, options.top_p, options.min_p)  # before the long load
    device = _quaver.resolve_device(options.device)
    with SlowTask("loading the model"):
        load = load_generator if device == "cpu" else load_engine_generator
        generator = load(options, max_model_len=len(prompt) + options.max_tokens)
    result = stream(tokenizer, generator, prompt, options)
    for note in generator.notes:
        print(f"note: {note}", file=sys.stderr)
    print(summary(generator, result), file=sys.stderr)
    return 0


def encode(tokenizer: Tokenizer, options: Namespace) -> list[int]:
    if not options.prompt:
        raise BadInputError("prompt: expected at least one character")
    if options.chat:
        from quaver.chat import encode_chat  # Jinja takes 60 ms to import

        system = [{"role": "system", "content": options.system}] if options.system is not None else []
        return encode_chat(tokenizer, [*system, {"role": "user", "content": options.prompt}])
    if options.system is not None:
        raise BadInputError("--system: expected --chat with it; a raw prompt has no system message")
    return tokenizer.encode_prompt(options.prompt)


def check_length(prompt_tokens: int, max_tokens: int, limit: int) -> None:
    if max_tokens < 0:
        raise BadInputError(f"--max-tokens {max_tokens}: expected 0 or more")
    if prompt_tokens + max_tokens > limit:
        raise BadInputError(
            f"prompt of {prompt_tokens} tokens + --max-tokens {max_tokens}: expected at most the model's {limit}"
        )


def load_generator(options: Namespace, max_model_len: int) -> Any:
    return _quaver.Generator.load(
        options.model,
        kv_cache_dtype=options.kv_cache_dtype,
        block_size=options.block_size,
        max_model_len=max_model_len,
        kv_scales=options.kv_scales,
        attention_precision=options.attention_precision,
        hf_overrides=options.hf_overrides,
        dummy_seed=options.seed if options.load_format == "dummy" else None,
    )


def load_engine_generator(options: Namespace, max_model_len: int) -> EngineGenerator:
    """The same on a GPU, where a model runs inside an engine; room for one sequence and no more."""
    engine = _quaver.Engine.load(
        options.model,
        device=options.device,
        kv_cache_dtype=options.kv_cache_dtype,
        block_size=options.block_size,
        max_model_len=max_model_len,
        max_num_seqs=1,
        kv_scales=options.kv_scales,
        attention_precision=options.attention_precision,
        hf_overrides=options.hf_overrides,
        dummy_seed=options.seed if options.load_format == "dummy" else None,
    )
    return EngineGenerator(engine)


def stream(tokenizer: Tokenizer, generator: Any, prompt: list[int], options: Namespace) -> Any:
    """Writes the text as it comes; returns the GenerationResult."""
    text = TextStream(tokenizer)

    def show(token_id: int) -> bool:
        sys.stdout.write(text.push(token_id))
        sys.stdout.flush()
        return True

    result = generator.generate(
        prompt,
        show,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        stop_token_ids=stop_ids(options.model),
    )
    print(text.finish())
    return result


def summary(generator: Any, result: Any) -> str:
    """ "12.3 tokens/s, first token after 0.12 s, 9,216 cache bytes per token, 32 tokens (length)" """
    return (
        f"{result.decode_tokens_per_s:.1f} tokens/s, first token after {result.ttft_s:.3f} s, "
        f"{generator.kv_bytes_per_token:,} cache bytes per token, {len(result.tokens)} tokens ({result.finish_reason})"
    )
