"""The published figures of the documents stand in the report, marked, beside rows of ours."""

from __future__ import annotations

from pathlib import Path

from tcgemm.report.folder import load
from tcgemm.report.published_rates import published_rates
from tcgemm.report.sections import sections

REPORT = Path(__file__).parent.parent / "reports" / "nvidia-h200"


def test_published_rates_are_marked_and_stand_beside_ours():
    section = next(each for each in sections(load(REPORT)) if each.slug == "published-rates")
    assert len(section.rows) == len(published_rates()) == 11
    for row in section.rows:
        assert all(row)
        assert row[4].endswith(("(published)", "(target)"))
    text = (REPORT / "README.md").read_text()
    for figure in ("1.7 eTOPS (published)", "0.8 eTOPS (published)", "270 TFLOPS (target)"):
        assert figure in text
    beside = {row[3]: row[5] for row in section.rows if "A100" in row[1]}
    assert all(float(here.split()[0]) > 100 for here in beside.values())


def test_who_published_is_named_and_the_case_is_the_exercise_s():
    frame = published_rates()
    assert set(frame["kind"]) == {"published", "target"}
    assert set(frame.loc[frame["kind"].eq("target"), "M"]) == {1024, 2048, 4096}
    assert frame["source"].str.contains("Gannon|Exercise 02").all()
