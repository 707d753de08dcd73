"""A rung's page teaches: at most 600 words, a picture, code of the source, rows, a way onwards.

A kernel that is added without one of these is named here with what it lacks. `scripts/pages` draws
the picture and writes what stands between markers; docs/site/blocks.py says how markers look.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tcgemm import dispatch

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS / "site"))

import numbers_of  # noqa: E402

RUNGS = [row for backend in ("cuda", "triton") for row in dispatch.ladder(backend)]
REPORTED = {(row["backend"], row["kernel"]) for row in numbers_of.rows("results.csv")}
UNREPORTED = {
    f"{row.backend}_{row.name}" for row in RUNGS if (row.backend, row.name) not in REPORTED
}
MOST_WORDS = 600


def prose(text):
    """A page without its code, comments and tables of measured rows."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"<!-- (?:measured|nav).*?<!-- end -->", "", text, flags=re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def lacks(text, name):
    """What a page lacks, in words."""
    checks = {
        "what one will learn": "**You will learn**" in text,
        f"the picture ![...](../pictures/{name}.svg)": f"](../pictures/{name}.svg)" in text,
        "a table of tiles": "| level |" in text,
        "code: <!-- code: PATH | FIRST LINE HAS | LAST LINE HAS --> ... <!-- end -->":
            re.search(r"<!-- code: .*?-->\n```\w+\n.*?```\n<!-- end -->", text, re.S),
        "**Predicted.**": "**Predicted.**" in text,
        "**Measured.**": "**Measured.**" in text,
        "rows: <!-- measured: KERNEL DTYPE SIZES --> ... <!-- end -->":
            re.search(r"<!-- measured: .*?-->\n\| ", text)
            # Of a rung that the report has not, rows of trials.
            or (name in UNREPORTED and re.search(r"\| -?[\d.]+<!-- = .*/trials/", text)),
        "## The counter that shows it": "## The counter that shows it" in text,
        "## Try": "## Try\n" in text,
        "links to the page before and after: <!-- nav --> ... <!-- end -->":
            re.search(r"<!-- nav -->\n.+<!-- end -->", text, re.S),
    }  # fmt: skip
    return [what for what, there in checks.items() if not there]


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.full_name)
def test_the_page_has_all_that_teaches(kernel):
    name = kernel.full_name.replace("/", "_")
    page = DOCS / "rungs" / f"{name}.md"
    assert page.exists(), f"{page} is missing: copy docs/rungs/cuda_naive.md, run scripts/pages"
    text = page.read_text()
    assert not lacks(text, name), f"docs/rungs/{name}.md lacks: {'; '.join(lacks(text, name))}"
    words = len(prose(text).split())
    assert words <= MOST_WORDS, f"docs/rungs/{name}.md has {words} words: a diary goes to docs/lab"


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.full_name)
def test_the_picture_is_there(kernel):
    path = DOCS / "pictures" / f"{kernel.full_name.replace('/', '_')}.svg"
    assert path.exists(), "run scripts/pages"
    assert kernel.full_name in path.read_text()


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.full_name)
def test_the_way_leads_to_the_neighbours_and_back(kernel):
    page = DOCS / "rungs" / f"{kernel.full_name.replace('/', '_')}.md"
    links = re.findall(r"\]\((\w+\.md)\)", page.read_text().rpartition("<!-- nav -->")[2])
    assert links
    for link in links:
        way = (DOCS / "rungs" / link).read_text().rpartition("<!-- nav -->")[2]
        assert f"]({page.name})" in way


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.full_name)
def test_shares_of_active_tensor_cores_are_queries(kernel):
    """What ncu.csv has a row for is not written by hand."""
    name = kernel.full_name.replace("/", "_")
    text = (DOCS / "rungs" / f"{name}.md").read_text()
    for figure, behind in re.findall(
        r"[Tt]ensor cores (?:are )?active[^.]*? (\d[\d.]*)(.{0,8})", text
    ):
        assert behind.startswith("<!-- ="), f"{figure} is typed: write a query behind it"


TERMS = {
    "warpgroup": "warpgroups?", "mbarrier": "mbarriers?", "tma": "TMA", "wgmma": "wgmma",
    "multicast": "multicasts?", "cluster": "clusters?", "epilogue": "epilogues?",
    "accumulator": "accumulators?", "swizzle": "swizzles?", "fragment": "fragments?",
    "sector": "sectors?", "wavefront": "wavefronts?", "occupancy": "occupancy", "ring": "rings?",
    "wave": "waves?", "ping-pong": "ping-pong", "pdl": "programmatic dependent launch",
    "stall": "stalls?", "bank-conflict": "bank conflicts?", "partial": "partials",
    "k-major": "K-major",
}  # fmt: skip
"""Entry of the glossary -> what a page may call it."""
FOUNDATIONS = {
    "swizzle": "swizzles", "fragment": "fragments", "sector": "coalescing",
    "occupancy": "occupancy", "ring": "async_copies", "wave": "waves", "stall": "reading_ncu",
    "bank-conflict": "bank_conflicts",
}  # fmt: skip
"""Entry of the glossary -> the page that may be linked in its place."""


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.full_name)
def test_terms_that_are_new_to_a_student_lead_to_what_they_mean(kernel):
    text = (DOCS / "rungs" / f"{kernel.full_name.replace('/', '_')}.md").read_text()
    plain = re.sub(r"^[|#].*$|`[^`]*`|\]\([^)]*\)", "", prose(text), flags=re.M)
    for entry, pattern in TERMS.items():
        if re.search(rf"(?<![\w./-])(?:{pattern})(?![\w-])", plain):
            pages = (f"glossary.md#{entry})", f"foundations/{FOUNDATIONS.get(entry, '-')}.md")
            assert any(page in text for page in pages), f"link {entry}, as ../glossary.md#{entry}"


UNITS = r"TFLOPS|us\b|ms\b|%|times\b|GB\b|MHz|microseconds"
TYPED = re.compile(rf"(?<![\w.,/-])\d[\d,]*(?:\.\d+)?(?=\s?(?:{UNITS}))")


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.full_name)
def test_what_was_measured_is_a_query_or_a_link(kernel):
    """To the row, or to the notes that say where a figure without a row came from."""
    text = (DOCS / "rungs" / f"{kernel.full_name.replace('/', '_')}.md").read_text()
    told = re.findall(r"^\*\*Measured\.\*\*.*$", text, re.M)
    told += re.findall(r"^## The counter that shows it\n\n(.*)$", text, re.M)
    assert len(told) == 2
    for paragraph in told:
        queried = numbers_of.FIGURE.sub("", paragraph)
        typed = TYPED.findall(re.sub(r"\[[^]]*\]\([^)]*\)", "", queried))
        assert typed == [], f"write a query behind {', '.join(typed)}, or link the notes"


def test_a_page_without_a_part_is_told_which():
    text = (DOCS / "rungs" / "cuda_naive.md").read_text()
    assert lacks(text, "cuda_naive") == []
    assert lacks(text.replace("<!-- nav -->", ""), "cuda_naive") == [
        "links to the page before and after: <!-- nav --> ... <!-- end -->"
    ]
    assert len(lacks("", "cuda_naive")) == 10


def test_long_notes_are_kept_and_linked():
    for page in (DOCS / "lab").glob("cuda_*.md"):
        rung = (DOCS / "rungs" / page.name).read_text()
        assert f"../lab/{page.name}" in rung
        assert f"../rungs/{page.name}" in page.read_text()


def test_a_small_share_is_not_rounded_to_nothing():
    import blocks

    assert [blocks.share(ratio) for ratio in (1.0, 0.54, 0.0951, 0.041, 0.00137)] == [
        "1.00", "0.54", "0.10", "0.041", "0.0014",
    ]  # fmt: skip
    for page in (DOCS / "rungs").glob("*.md"):
        assert "| 0.00 |" not in page.read_text()


@pytest.mark.parametrize("kernel", RUNGS, ids=lambda kernel: kernel.full_name)
def test_what_was_measured_and_counted_is_said_in_a_sentence(kernel):
    """Which begins with what was measured, and not with its figure."""
    text = (DOCS / "rungs" / f"{kernel.full_name.replace('/', '_')}.md").read_text()
    said = re.findall(r"^\*\*(?:Predicted|Measured)\.\*\* (.*)|(?<=shows it\n\n)(.*)", text, re.M)
    assert len(said) == 3
    for sentence in map("".join, said):
        assert not re.match(r"\[?[\d.,]+(?!\d)(?:<| (?:us|TFLOPS|to|times)\b)", sentence), sentence
        assert not re.match(
            r"(?:Tensor cores active|Level with|As predicted|A little|Half of)\b", sentence
        )
