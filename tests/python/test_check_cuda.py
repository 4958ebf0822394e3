"""The CUDA build check must find what it is for: serialised WGMMA, unlisted spills, local memory in tile loops."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("check_cuda", ROOT / "scripts" / "check_cuda.py")
check_cuda = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_cuda)

ENTRY = "ptxas info    : Compiling entry function '_Z6kernelv' for 'sm_90a'"
CLEAN = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
SPILL = "    32 bytes stack frame, 8 bytes spill stores, 24 bytes spill loads"
SERIALISED = (
    "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ..."
)


def findings(log: list[str], spills: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "spills.txt"
    path.write_text(spills)
    report = check_cuda.Report()
    check_cuda.check_log("\n".join(log), check_cuda.read_allowances(path), report)
    return report.findings


def test_clean_build_has_no_finding(tmp_path):
    assert findings([ENTRY, CLEAN], "# nothing\n", tmp_path) == []


def test_serialised_wgmma_is_found(tmp_path):
    assert len(findings([ENTRY, SERIALISED, CLEAN], "", tmp_path)) == 1


@pytest.mark.parametrize(
    ("spills", "count"),
    [("", 1), ("_Z6kernelv 16 too small\n", 1), ("_Z6kernelv 24 the item loop\n", 0), ("_Z5otherv 24 unused\n", 2)],
)
def test_spills_must_be_listed_with_enough_bytes(tmp_path, spills, count):
    assert len(findings([ENTRY, SPILL], spills, tmp_path)) == count


@pytest.mark.parametrize("line", ["_Z6kernelv 33 above the limit", "_Z6kernelv 8", "_Z6kernelv many reason"])
def test_bad_allowance_is_refused(tmp_path, line):
    path = tmp_path / "spills.txt"
    path.write_text(line)
    with pytest.raises(SystemExit, match="expected"):
        check_cuda.read_allowances(path)


def kernel(tile_body: list[str], item_body: list[str]) -> list[tuple[int, str]]:
    """An item loop around a tile loop; the tile loop's second half is laid out behind the EXIT, as ptxas does."""
    text = [
        "S2R R0, SR_TID.X",  # 0x00
        *item_body,  # item loop header at 0x10
        "QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24",
        "BRA OUT_OF_LINE",
        "@P1 BRA ITEM",
        "EXIT",
        *tile_body,
        "@P0 BRA TILE",
        "BRA AFTER",
    ]
    tile = 1 + len(item_body)
    target = {"TILE": tile, "AFTER": tile + 2, "ITEM": 1, "OUT_OF_LINE": tile + 4}
    code = []
    for index, line in enumerate(text):
        for name, position in target.items():
            line = line.replace(f"BRA {name}", f"BRA {16 * position:#x}")
        code.append((16 * index, line))
    return code


def tile_loop_findings(code: list[tuple[int, str]]) -> list[str]:
    report = check_cuda.Report()
    check_cuda.check_function("kernel", code, report)
    assert report.tile_loops == 1
    return report.findings


def test_local_memory_in_the_tile_loop_is_found_even_out_of_line():
    assert len(tile_loop_findings(kernel(["LDL R1, [R2]"], ["MOV R1, R2"]))) == 1


def test_local_memory_in_the_item_loop_is_allowed():
    assert tile_loop_findings(kernel(["FFMA R1, R2, R3, R4"], ["STL [R1], R2"])) == []
