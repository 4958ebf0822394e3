"""`quaver bench attention` without a GPU: the program is found or named, reports are checked, drawn and tabled."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quaver.bench import attention
from quaver.errors import BadInputError

ROOT = Path(__file__).resolve().parents[2]
PREFILL_CASE = {"name": "d256_b1_q8192_kv8192_causal_single", "us": 1040.0, "tflops": 1055.0, "rel_l2": 0.036}
REPORT = {
    "commit": "abc1234",
    "gpu": "a GPU",
    "driver": "580.0",
    "sm_clock_mhz": 1700,
    "ceilings": {"read_gbps": 4500.0},
    "cases": [{"name": "d256_b64_kv8192", "us": 950.0, "kv_gbps": 4480.0, "pct_ceiling": 99.6, "rel_l2": 0.0018}],
}


def fake_program(folder: Path, script: str) -> None:
    program = folder / attention.PROGRAM
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_runs_the_program_and_keeps_its_report(tmp_path, monkeypatch):
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    fake_program(tmp_path, f'cp {tmp_path}/report.json "$2"')  # --out is the first option
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    out = tmp_path / "results" / "decode.json"
    attention.run("decode", out, plot=tmp_path / "decode.svg")
    assert json.loads(out.read_text()) == REPORT
    assert "d256_b64_kv8192" in (tmp_path / "decode.svg").read_text() or (tmp_path / "decode.svg").stat().st_size > 5000


def test_prefill_reports_have_tflops(tmp_path, monkeypatch):
    (tmp_path / "report.json").write_text(json.dumps(REPORT | {"cases": [PREFILL_CASE]}))
    fake_program(tmp_path, f'test "$7 $8" = "--suite prefill" && cp {tmp_path}/report.json "$2"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    attention.run("prefill", tmp_path / "prefill.json", plot=tmp_path / "prefill.svg")
    assert attention.speed(attention.read_report(tmp_path / "prefill.json")["cases"][0]) == 1055.0
    assert (tmp_path / "prefill.svg").stat().st_size > 5000


def test_a_failing_program_is_an_error(tmp_path, monkeypatch):
    fake_program(tmp_path, "exit 3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BadInputError, match="status 3"):
        attention.run("decode", tmp_path / "decode.json")


def test_a_missing_program_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(attention, "BUILD_TREE", tmp_path / "nowhere")
    with pytest.raises(BadInputError, match="bench_attention: expected on PATH"):
        attention.run("decode", tmp_path / "decode.json")


def test_an_unknown_suite_is_named():
    with pytest.raises(BadInputError, match="suite prefil: expected decode"):
        attention.run("prefil", Path("unused.json"))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"commit": "a", "gpu": "b", "driver": "c", "sm_clock_mhz": 1}'])
def test_a_report_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(BadInputError, match="expected a report of bench_attention"):
        attention.read_report(path)


def test_the_committed_report_is_what_the_readme_shows():
    results = ROOT / "bench" / "results" / "h200"
    for suite in attention.SUITES:
        attention.read_report(results / f"{suite}.json")
    commit = attention.read_report(results / "decode.json")["commit"]
    assert f"commit {commit}" in (results / "decode.svg").read_text(), "decode.svg: expected the picture of decode.json"
    subprocess.run([sys.executable, ROOT / "bench" / "render_tables.py", "--check"], check=True)


def test_commit_of_a_copy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUAVER_COMMIT", "0123abc")
    assert attention.version_control_commit() == "0123abc"
