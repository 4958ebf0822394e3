"""Which device each engine of --data-parallel-size gets, and the engines themselves."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from quaver.errors import BadInputError
from quaver.server.options import engine_arguments


def load_engines(options: Namespace) -> list[Any]:
    """One engine a device, in order. Raises what engine_devices() and Engine.load raise."""
    from quaver import _quaver

    devices = engine_devices(options, _quaver.num_gpus())
    on_gpus = devices[0] != "cpu"
    arguments = engine_arguments(options, on_gpus=on_gpus)
    return [_quaver.Engine.load(options.model, device=device, **arguments) for device in devices]


def engine_devices(options: Namespace, num_gpus: int) -> list[str]:
    """A name a data-parallel engine. Engines share a GPU only where --kv-cache-memory-bytes says how much each takes:
    by utilization the first one would leave nothing to the second."""
    count = options.data_parallel_size
    name = options.device if options.device != "auto" else ("cuda" if num_gpus else "cpu")
    if name == "cpu":
        return ["cpu"] * count
    if name != "cuda":
        _check_sharing(count == 1, f"--device {name}", options)
        return [name] * count
    _check_sharing(count <= max(num_gpus, 1), f"{num_gpus} GPU{'s' * (num_gpus != 1)}", options)
    return [f"cuda:{index % max(num_gpus, 1)}" for index in range(count)]


def _check_sharing(enough_gpus: bool, available: str, options: Namespace) -> None:
    if not enough_gpus and options.kv_cache_memory_bytes == 0:
        raise BadInputError(
            f"--data-parallel-size {options.data_parallel_size} on {available}: expected a GPU for each engine, or "
            "--kv-cache-memory-bytes, each one's share"
        )
