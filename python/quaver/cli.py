"""The command line: quaver generate | serve | explain | convert | bench. Thin: arguments in, one call, one line out."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from quaver.bench.options import add_offline_arguments, add_serve_arguments
from quaver.errors import BadInputError
from quaver.model_folder import model_folder

_BAD_INPUT, _FAILED, _INTERRUPTED = 2, 1, 130
_USES_SOCKETS = ("serve", "bench")  # a client that hangs up is an error there, not the end of the process


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0, 2 for bad input, 130 for Ctrl-C, 1 for anything else."""
    options = _parser().parse_args(arguments)
    if options.command not in _USES_SOCKETS:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `quaver … | head` ends quietly
    try:
        return options.run(options)
    except (BadInputError, ValueError, FileNotFoundError) as error:
        return _report(error, _BAD_INPUT)
    except KeyboardInterrupt:
        return _report("interrupted", _INTERRUPTED)
    except Exception as error:  # the last line of defence: whatever happens, people get one line
        return _report(error, _FAILED)


def _report(error: Exception | str, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"quaver: {text}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="quaver", description="FP8 attention and LLM serving for NVIDIA Hopper GPUs")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_generate(commands.add_parser("generate", help="answer one prompt, streaming to the terminal"))
    _add_serve(commands.add_parser("serve", help="answer the OpenAI API over HTTP"))
    _add_explain(commands.add_parser("explain", help="which attention kernel would run, and why"))
    _add_convert(commands.add_parser("convert", help="turn a GGUF file into a Hugging Face folder"))
    _add_bench(commands.add_parser("bench", help="measure"))
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from quaver import __version__

        print(f"quaver {__version__}")
        parser.exit()


def _add_generate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=model_folder, required=True, metavar="DIR", help="Hugging Face folder of a Gemma 3 or 4 model")
    add("--tokenizer", type=Path, metavar="DIR", help="folder of the tokenizer (default: the model's)")
    add("--prompt", required=True, help="text to continue, or the user's message with --chat")
    add("--chat", action="store_true", help="render the prompt through the model's chat template")
    add("--system", help="system message (with --chat)")
    add("--max-tokens", type=int, default=128, help="most tokens to generate (default %(default)s)")
    add("--kv-cache-dtype", choices=("fp8", "bf16"), default="fp8", help="default %(default)s")
    add("--block-size", type=int, default=64, choices=(16, 32, 64, 128), help="tokens of a page (default %(default)s)")
    add("--kv-scales", choices=("auto", "one"), default="auto", help="FP8 scales the checkpoint lacks: derived, or 1.0")
    add("--attention-precision", choices=("auto", "single", "split", "full"), default="auto")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--top-k", type=int, default=0, help="keep the k likeliest tokens; 0: all (default)")
    add("--top-p", type=float, default=1.0, help="keep the likeliest tokens up to this probability (default 1)")
    add("--min-p", type=float, default=0.0, help="drop tokens below this share of the likeliest one (default 0)")
    add("--seed", type=_seed, default=0, help="of the random draws (default %(default)s)")
    add("--load-format", choices=("auto", "dummy"), default="auto", help="dummy: random weights of the true shapes")
    add("--hf-overrides", default="", metavar="JSON", help="merged over config.json")
    add("--device", default="auto", help="cpu, cuda, cuda:N, or auto: a GPU where there is one (default)")
    parser.set_defaults(run=_run_generate)


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 to 2^64 - 1")
    return value


def _run_generate(options: argparse.Namespace) -> int:
    from quaver.generate import run

    return run(options)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    from quaver.server.options import add_arguments

    add_arguments(parser)
    parser.set_defaults(run=_run_serve)


def _run_serve(options: argparse.Namespace) -> int:
    from quaver.server.serve import run  # Starlette and Uvicorn take 0.2 s to import

    return run(options)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--arch", type=int, default=90, help="90: Hopper (default); 0: CPU")
    add("--model", type=model_folder, metavar="DIR", help="every kind of layer of this model, and its GPU memory")
    add("--hf-overrides", default="", metavar="JSON", help="merged over the model's config.json")
    add("--max-model-len", type=int, default=0, metavar="N", help="for its memory; 0: as the model says (default)")
    add("--max-num-seqs", type=int, default=256, metavar="N", help="likewise (default %(default)s)")
    add("--max-num-batched-tokens", type=int, default=2048, metavar="N", help="likewise (default %(default)s)")
    add("--q-heads", type=int, help="without --model, as the next two")
    add("--kv-heads", type=int)
    add("--head-dim", type=int, help="of Q and K")
    add("--v-head-dim", type=int, help="of V, where it differs")
    add("--kv-cache-dtype", choices=("fp8", "bf16"), default="fp8", help="default %(default)s")
    add("--block-size", type=int, default=64, help="tokens of a page (default %(default)s)")
    add("--max-query-len", type=int, default=1, help="most query tokens of one sequence; 1: decode (default)")
    add("--window", type=int, default=0, help="sliding window in keys; 0: none (default)")
    add("--softcap", type=float, default=0.0, help="cap of the logits; 0: none (default)")
    add("--sinks", action="store_true", help="one extra logit per query head")
    add("--bidirectional-spans", action="store_true", help="tokens of one image see each other")
    add("--non-causal", action="store_true")
    add("--batch-invariant", action="store_true", help="results must not depend on batch-mates")
    add("--precision", default="auto", help="auto (default), single, split or full")
    add("--kernel", help="ask for this kernel: it is kept, or refused with the reason")
    parser.set_defaults(run=_run_explain)


def _run_explain(options: argparse.Namespace) -> int:
    from quaver.explain import run

    return run(options)


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="FILE.gguf")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="a folder that does not exist yet")
    parser.set_defaults(run=_run_convert)


def _run_convert(options: argparse.Namespace) -> int:
    from quaver.convert import convert
    from quaver.progress import SlowTask

    with SlowTask(f"converting {options.source.name}") as task:
        convert(options.source, options.out_dir, task.update)
    print(f"wrote {options.out_dir}")
    return 0


def _add_bench(parser: argparse.ArgumentParser) -> None:
    suites = parser.add_subparsers(dest="what", required=True, metavar="what")
    attention = suites.add_parser("attention", help="time the GPU attention kernels (needs an H100 or H200)")
    attention.add_argument("--suite", default="decode", help="decode (default) or prefill")
    attention.add_argument("--out", type=Path, default=Path("decode.json"), help="report (default %(default)s)")
    attention.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    attention.add_argument("--plot", type=Path, metavar="FILE", help="draw the report as .svg or .png")
    attention.set_defaults(run=_run_bench_attention)
    serve = suites.add_parser("serve", help="load an OpenAI-compatible server: throughput and latencies")
    add_serve_arguments(serve)
    serve.set_defaults(run=_run_bench_serve)
    offline = suites.add_parser("offline", help="the same load on an engine in this process")
    add_offline_arguments(offline)
    offline.set_defaults(run=_run_bench_offline)


def _run_bench_attention(options: argparse.Namespace) -> int:
    from quaver.bench.attention import run

    run(options.suite, options.out, options.only, options.plot)
    return 0


def _run_bench_serve(options: argparse.Namespace) -> int:
    from quaver.bench.serve import run

    return run(options)


def _run_bench_offline(options: argparse.Namespace) -> int:
    from quaver.bench.offline import run

    return run(options)
