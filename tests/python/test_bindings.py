"""The C++ module: errors become the promised exceptions, page bytes follow the published layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quaver import _quaver

LAYOUT = {"num_kv_heads": 3, "head_dim_k": 32, "head_dim_v": 48, "page_size": 16}


def layout(**fields: object) -> _quaver.KvLayout:
    return _quaver.KvLayout(**({"dtype": "fp8"} | LAYOUT | fields))


def rows(head_dim: int, length: int = 37) -> np.ndarray:
    """Small integers, which E4M3 and BF16 both hold exactly."""
    return np.random.default_rng(head_dim).integers(-8, 9, (length, 3, head_dim)).astype(np.float32)


def test_page_bytes() -> None:
    assert layout().page_bytes == 3 * (32 + 48) * 16
    assert layout(dtype="bf16").page_bytes == 2 * 3 * (32 + 48) * 16


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_pages_there_and_back(dtype: str) -> None:
    """37 tokens fill 3 pages of 16, the last one in part."""
    k, v = rows(32), rows(48)
    pages = _quaver.pack_pages(layout(dtype=dtype), k, v)
    assert pages.shape == (3, layout(dtype=dtype).page_bytes) and pages.dtype == np.uint8
    k_back, v_back = _quaver.unpack_pages(layout(dtype=dtype), pages, 37)
    assert np.array_equal(k_back, k) and np.array_equal(v_back, v)


def test_offsets_find_single_values() -> None:
    """One value that is not zero lies at the byte that the offset functions name: 1.0 is 0x38 in E4M3."""
    for head, token, dim in [(0, 0, 0), (1, 9, 17), (2, 15, 31)]:
        k, v = np.zeros((16, 3, 32), np.float32), np.zeros((16, 3, 48), np.float32)
        k[token, head, dim] = v[token, head, dim] = 1.0
        page = _quaver.pack_pages(layout(), k, v)[0]
        assert np.flatnonzero(page).tolist() == [
            layout().k_offset(head, token, dim),
            layout().v_offset(head, token, dim),
        ]
        assert set(page[np.flatnonzero(page)]) == {0x38}


def test_scales_divide_on_the_way_in() -> None:
    k, v = 4 * rows(32), 2 * rows(48)
    scales = {"k_scale": np.full(3, 4, np.float32), "v_scale": np.full(3, 2, np.float32)}
    pages = _quaver.pack_pages(layout(), k, v, **scales)
    assert np.array_equal(pages, _quaver.pack_pages(layout(), k / 4, v / 2))
    k_back, v_back = _quaver.unpack_pages(layout(), pages, 37, **scales)
    assert np.array_equal(k_back, k) and np.array_equal(v_back, v)


def test_strided_rows_need_no_copy() -> None:
    k, v = rows(64)[:, :, ::2], rows(48, 74)[::2]
    with pytest.raises(ValueError, match="k last stride 2: expected 1"):
        _quaver.pack_pages(layout(), k, v)
    k = np.ascontiguousarray(k)
    assert np.array_equal(_quaver.pack_pages(layout(), k, v), _quaver.pack_pages(layout(), k, v.copy()))


@pytest.mark.parametrize(("fields", "message"), [
    ({"dtype": "int8"}, "kv dtype int8: expected one of fp8, bf16"),
    ({"page_size": 48}, "page size 48"),
    ({"head_dim_k": 20}, "head dim 20"),
    ({"num_kv_heads": 0}, "kv heads 0"),
])  # fmt: skip
def test_bad_layouts_are_value_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = layout(**fields).page_bytes


@pytest.mark.parametrize(("shape", "length"), [((3, 1), 37), ((2, 3 * 80 * 16), 37), ((3, 3 * 80 * 16), -1)])
def test_bad_arrays_are_value_errors(shape: tuple[int, int], length: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        _quaver.unpack_pages(layout(), np.zeros(shape, np.uint8), length)


def problem(**fields: object) -> _quaver.AttentionProblem:
    return _quaver.attention_problem(**({"arch": 0, "num_q_heads": 6, "kv": layout()} | fields))


def test_a_plan_and_its_reason() -> None:
    plan = _quaver.plan_attention(problem())
    assert (plan.kernel, plan.precision) == ("cpu", "full")
    assert plan.kv_tile == 64 and plan.reason and plan.kernel in str(plan)


def test_an_override_is_kept_or_refused() -> None:
    assert _quaver.plan_attention(problem(kernel="cpu", precision="full")).kernel == "cpu"
    with pytest.raises(ValueError, match="decode_fp8"):
        _quaver.plan_attention(problem(kernel="decode_fp8"))


@pytest.mark.parametrize(("fields", "message"), [
    ({"num_q_heads": 7}, "7"),
    ({"precision": "double"}, "precision double: expected one of auto, single, split, full"),
    ({"kernel": "warp"}, "kernel warp: expected one of cpu, "),
])  # fmt: skip
def test_problems_without_a_plan(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _quaver.plan_attention(problem(**fields))


def test_generation_and_its_attention_error(tiny_dir: Path) -> None:
    """Figures of a run, the stop by callback, and errors of the size that the cache types explain."""
    errors = {}
    for dtype in ("fp8", "bf16"):
        generator = _quaver.Generator.load(tiny_dir, kv_cache_dtype=dtype, max_model_len=64)
        probe = generator.probe_attention()
        result = generator.generate([2, 5, 6, 7], max_tokens=20, ignore_eos=True)
        assert (len(result.tokens), result.finish_reason, result.prompt_tokens) == (20, "length", 4)
        assert result.ttft_s > 0 and result.decode_tokens_per_s > 0
        errors[dtype] = probe.errors()
        assert 0 < errors[dtype].same_cache < 1e-5
    assert 1e-3 < errors["bf16"].exact_cache < 4e-3 < 1e-2 < errors["fp8"].exact_cache < 6e-2

    seen: list[int] = []
    result = generator.generate(
        [2, 5], lambda token: seen.append(token) or len(seen) < 3, max_tokens=9, ignore_eos=True
    )
    assert (seen, result.finish_reason) == (result.tokens, "abort") and len(seen) == 3


def test_an_exception_in_the_callback_comes_back(tiny_dir: Path) -> None:
    generator = _quaver.Generator.load(tiny_dir, max_model_len=64)

    def refuse(token: int) -> bool:
        raise LookupError(token)

    with pytest.raises(LookupError):
        generator.generate([2, 5], refuse, max_tokens=4, ignore_eos=True)
    assert len(generator.generate([2, 5], max_tokens=4, ignore_eos=True).tokens) == 4


def test_missing_folder_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        _quaver.Generator.load(tmp_path)
