"""The reports' text and files."""

import json

import pytest

from bench import report
from bench.case import Work
from bench.machine import Peaks
from bench.runner import CaseResult

MACHINE = {
    "cpu": "Testor 9000",
    "cores": 2,
    "threads": 2,
    "date": "2030-01-01 00:00 UTC",
    "load_before": 0.1,
    "load_after": 0.2,
    "versions": {"numpy": "2.0", "torch": "9.9"},
}
PEAKS = {"before": Peaks(2e11, ((1 << 20, 1e11),)), "after": None}


def result(name="a-case", family="gemm", ours=1e-3, theirs=2e-3, **options):
    samples = {"noeira": [ours] * 26, "torch": [theirs] * 26}
    return CaseResult(name, family, Work(1e6), floor=5e-4, samples=samples, **options)


@pytest.mark.parametrize(
    ("value", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 µs"), (3e-8, "30 ns"), (0.0, "0 ns")]
)
def test_seconds(value, text):
    assert report.seconds(value) == text


def test_rate():
    assert [report.rate(value) for value in (2.36e11, 1.2e12, 5e6, 12.0)] == ["236 G", "1.2 T", "5 M", "12 "]


def test_lines_show_ratio_floor_and_net():
    text = "\n".join(report.lines(result(overhead=2e-4)))
    assert "noeira/torch = 0.500 (0.500 .. 0.500)" in text
    assert "50% of floor" in text and "25% of floor" in text
    assert "net 800 µs + 200 µs for the call" in text


def test_lines_own_up():
    assert "DISTURBED" in report.lines(result(others=0.5))[0]
    assert "3 disturbed rounds replaced" in report.lines(result(dropped=3))[0]
    assert report.lines(CaseResult("c", "f", Work(), error="results differ")) == ["c: results differ"]
    assert report.lines(result(absent={"jax": "gone"}))[-1] == "  jax: left out: gone"


def test_speed_summary_takes_the_best_other():
    second = result("b-case", ours=4e-3, theirs=2e-3)
    second.samples["numpy"] = [1e-3] * 26
    text = report.speed_summary([result(), second])
    assert "0.71x (geometric mean; worst 0.25x, b-case)" in text
    assert "net" not in text
    assert report.speed_summary([result()]) == ""


def test_speed_summary_net_of_the_call_says_what_it_leaves_out():
    members = [result("a", overhead=5e-4), result("b", overhead=5e-4), result("c", overhead=9e-4)]
    text = report.speed_summary(members)
    assert "net of the call 4.00x" in text and "1 cases too short to tell" in text
    assert "(net unknown)" in report.markdown(members, MACHINE, PEAKS, {})


def test_markdown():
    results = [result(), result("b", others=0.5), CaseResult("c", "startup", Work(), error="a|b broke")]
    text = report.markdown(results, MACHINE, PEAKS, {"jax": "not here"})
    assert "2030-01-01 00:00 UTC, Testor 9000, 2 cores, 2 threads" in text
    assert "numpy 2.0, torch 9.9" in text
    assert "200 GFLOP/s" in text and "100 GB/s (1 MiB)" in text
    assert "| a-case | torch | 2 ms | 2 ms..2 ms | 0.50 (0.50..0.50) | 25% |" in text
    assert "| b* | noeira |" in text
    assert "| c | | a/b broke | | | |" in text
    assert "**Measured on a busy machine**" in text and "1 of 2 cases" in text
    assert "jax took no part: not here" in text
    assert "Measured on a quiet machine" in report.markdown([result(others=0.01)], MACHINE, PEAKS, {})


def test_json_holds_samples_and_figures(tmp_path):
    path = tmp_path / "new" / "out.json"
    report.write_json(path, report.document([result(notes={"noeira": {"CPU s": 1.5}})], MACHINE, PEAKS, {}))
    data = json.loads(path.read_text())
    (found,) = data["cases"]
    assert len(found["samples"]["torch"]) == 26
    assert found["summaries"]["noeira"]["median"] == 1e-3
    assert found["ratios"]["torch"]["value"] == 0.5
    assert found["notes"]["noeira"]["CPU s"] == 1.5
    assert data["peaks"]["before"]["flops"] == 2e11 and data["machine"]["cpu"] == "Testor 9000"


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    from bench import pictures

    failed = CaseResult("c", "startup", Work(), error="broke")
    written = pictures.plot([result(), result("b"), failed], tmp_path / "plots", MACHINE)
    assert [path.name for path in written] == ["gemm.png"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
