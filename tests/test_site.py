"""The site of docs/ builds without a warning, has every page, and finds the field's words."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from datetime import date
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import blocks  # noqa: E402
import contents  # noqa: E402
import numbers_of  # noqa: E402

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
KERNELS = [path.stem for path in PICTURES if path.stem.startswith(("cuda_", "triton_"))]
FIGURES = [
    (page, found) for page in PAGES for found in numbers_of.FIGURE.finditer(page.read_text())
]


def test_every_page_is_in_the_contents():
    named = {page for _, pages in contents.SECTIONS for page in pages} | {"README"}
    there = [*PAGES, *(ROOT / "docs" / "notebooks").glob("*.ipynb")]
    assert {p.relative_to(ROOT / "docs").with_suffix("").as_posix() for p in there} == named


@pytest.mark.exhaustive  # test_the_build_begins_with_that_check: nothing but what it changes
def test_pages_and_pictures_are_what_the_sources_make():
    command = [sys.executable, "scripts/pages", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory, thorough):
    """The site that `make docs` built, where no file has changed since; else, in make test-all, one
    built here."""
    if (made := ROOT / "docs/_build/html/index.html").exists():
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
        files = [ROOT / name for name in listed.stdout.splitlines()]
        if files and max(f.stat().st_mtime for f in files if f.exists()) < made.stat().st_mtime:
            return made.parent
    if not thorough:
        pytest.skip("make docs has built no site of these files, and make test-all would")
    for needed in ("furo", "myst_nb"):
        pytest.importorskip(needed, reason="pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    began = time.monotonic()
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-E", "-W", "--keep-going", "-q"]
    done = subprocess.run([*command, "docs", str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 180
    return out


def test_the_site_has_an_entry_a_search_and_a_way_onwards(site):
    assert (site / "index.html").read_text().count("sidebar") > 0
    assert (site / "search.html").exists()
    page = (site / "rungs/cuda_tiled.html").read_text()
    assert 'class="next-page"' in page
    assert 'class="prev-page"' in page
    source = (site / "repository/cuda_ref/rungs/tiled.cu.html").read_text()
    assert "__global__" in source
    assert "../../../rungs" in source or "_static" in source
    page = (site / "side_by_side/wmma.html").read_text()
    assert "HMMA" in page
    assert '<a href="../side_by_side.html">' in page
    assert "ridge point 206" in (site / "notebooks/roofline_by_hand.html").read_text()


def test_a_tables_numbers_and_sentences_are_told_apart(site):
    page = (site / "lab/cuda_wgmma_persistent.html").read_text()
    assert re.search(r'<td class="short"><p>5.8', page)
    page = (site / "tests.html").read_text()
    assert re.search(r'<td class="long"><p>', page)
    assert re.search(r'<code class="[^"]*\bwhole\b[^"]*"><span class="pre">--help</span>', page)


def test_a_drawing_in_letters_is_not_coloured_as_a_program(site):
    page = (site / "lab/cuda_gemv.html").read_text()
    drawn = re.search(r"<pre>(?:(?!</pre>).)*a warp's ring.*?</pre>", page, re.S)
    assert drawn
    assert '<span class="' not in drawn[0]


def test_links_inside_the_site_lead_somewhere(site):
    for page in site.rglob("*.html"):
        if "reports" in page.relative_to(site).parts:
            continue
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
            if re.match(r"https?:|mailto:|data:", target):
                continue
            assert (page.parent / target).exists(), f"{page.relative_to(site)} links to {target}"


def test_links_to_a_place_of_a_page_lead_to_that_place(site):
    """To a heading of a report's README too, which is a section of its page."""
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    places = {
        page: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for page, text in pages.items()
    }
    seen = 0
    for page, text in pages.items():
        for target, place in re.findall(r'href="([^"#?:]*\.html)?#([^"]+)"', text):
            leads = (page.parent / target).resolve() if target else page
            assert unquote(place) in places[leads], f"{page.relative_to(site)}: {target}#{place}"
            seen += "reports" in target
    assert seen > 20


def test_a_text_beside_the_sources_is_no_listing(site):
    page = (site / "repository/CONTRIBUTING.md.html").read_text()
    body = page[page.index("<article") : page.index("</article>")]
    assert '<h2 id="add-an-epilogue-a-dtype-a-gpu">' in body
    assert '<a href="../measuring.html">' in body or '<a href="../contract.html">' in body
    assert not re.search(r"\*\*|\]\(|```", re.sub(r"<[^>]*>", "", body))
    script = (site / "repository/scripts/blas_level3.html").read_text()
    assert '<span class="k">def</span>' in script
    assert (
        "rungs/<wbr>wmma_<wbr>any.cu"
        in (site / "repository/cuda_ref/rungs/wmma_any.cu.html").read_text()
    )


@pytest.mark.parametrize(
    "words", ["occupancy", "coalescing", "wave quantization", "programmatic dependent launch"]
)
def test_a_search_finds_the_words_of_the_field(site, words):
    index = (site / "searchindex.js").read_text().removeprefix("Search.setIndex(").rstrip(");\n")
    found = json.loads(index)
    import snowballstemmer

    stem = snowballstemmer.stemmer("english").stemWord
    pages = []
    for word in words.split():
        hits: set[int] = set()
        for table in (found["terms"], found["titleterms"]):
            places = table.get(stem(word), [])
            hits |= {places} if isinstance(places, int) else set(places)
        pages.append(hits)
    assert set.intersection(*pages), words
    assert any(words in page.read_text().lower() for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_no_word_of_a_page_is_taken_for_a_tag(page):
    """`<gpu>` outside of code vanishes from a page; comments are meant to."""
    parsed = pytest.importorskip("markdown_it").MarkdownIt().enable("table").parse(page.read_text())
    tokens = [*parsed, *itertools.chain.from_iterable(token.children or [] for token in parsed)]
    tags = [token.content for token in tokens if token.type in ("html_inline", "html_block")]
    assert not [tag for tag in tags if not tag.lstrip().startswith("<!--")]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_box_of_a_time_line_has_room_for_its_words(kernel):
    from pictures import constants, rungs

    backend, _, name = kernel.partition("_")
    lanes = rungs.lanes_of(f"{backend}/{name}", constants.of_kernel(f"{backend}/{name}"))
    empty = [words for _, boxes in lanes for _, length, words, _ in boxes
             if not rungs.fits(words, length)]  # fmt: skip
    assert not empty


def test_the_operands_of_a_transposed_product_are_drawn_where_they_stand():
    text = (ROOT / "docs/pictures/triton_skinny.svg").read_text()
    assert "A transposed: 64 x 16" in text
    assert "B transposed: 128 x 64" in text


def labels(path):
    """(words, left, top, right, bottom) of each text of a picture that is not turned, in DejaVu
    Sans: wider than what most browsers take."""
    path_of = pytest.importorskip("matplotlib.textpath").TextToPath()
    font = pytest.importorskip("matplotlib.font_manager").FontProperties
    for text in ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text"):
        words = (text.text or "").strip()
        if not words or "transform" in text.attrib:
            continue
        size, weight = float(text.get("font-size")), text.get("font-weight", "400")
        kind = font(family="DejaVu Sans", size=size, weight=int(weight))
        width, height, _ = path_of.get_text_width_height_descent(words, kind, ismath=False)
        x, y = float(text.get("x")), float(text.get("y"))
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
        yield words, left, y - height, left + width, y


def covered(a, b):
    """Whether two labels stand on each other."""
    wide = min(a[3], b[3]) - max(a[1], b[1])
    high = min(a[4], b[4]) - max(a[2], b[2])
    return wide > 2 and high > 2


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_no_label_of_a_picture_is_cut_or_covered(path):
    width, height = map(float, ET.parse(path).getroot().get("viewBox").split()[2:])
    found = list(labels(path))
    assert found
    for one in found:
        assert min(one[1:]) > -1, one
        assert one[3] < width + 1, one
        assert one[4] < height + 1, one
    for one, another in itertools.combinations(found, 2):
        assert not covered(one, another), (one, another)


def test_labels_that_stand_on_each_other_are_seen():
    assert covered(("a", 0, 0, 20, 10), ("b", 15, 0, 40, 10))
    assert not covered(("a", 0, 0, 20, 10), ("b", 21, 0, 40, 10))


def other(figure):
    """The figure with its last digit changed."""
    return figure[:-1] + str((int(figure[-1]) + 1) % 10)


def test_there_are_figures_in_the_rungs_pages_the_lab_and_the_documents():
    where = {page.relative_to(ROOT / "docs").parts[0] for page, _ in FIGURES}
    assert where >= {"rungs", "lab", "documents.md"}
    assert len(FIGURES) >= 900


TABLE = re.compile(r"<!-- measured: .*? -->\n(.*?)<!-- end -->", re.S)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def measured():
    """(page, place of its first character, figure) of all that was measured: figures with a query,
    and the cells of the tables that scripts/pages writes."""
    found = [(page, each.start("figure"), each["figure"]) for page, each in FIGURES]
    for page in PAGES:
        for block in TABLE.finditer(page.read_text()):
            for number in NUMBER.finditer(block[1]):
                found.append((page, block.start(1) + number.start(), number[0]))
    return found


def test_a_digit_changed_in_any_of_twenty_drawn_figures_fails_the_build():
    """As scripts/pages --check sees it, which `make docs` begins with. Others every day."""
    figures = measured()
    assert len({page for page, _, _ in figures}) >= 30
    day = date.today().toordinal()
    draw = random.Random(day)
    for page, start, figure in draw.sample(figures, 20):
        text = page.read_text()
        digits = [at for at, letter in enumerate(figure) if letter.isdigit()]
        at = start + draw.choice(digits)
        wrong = text[:at] + str((int(text[at]) + draw.randint(1, 9)) % 10) + text[at + 1 :]
        assert blocks.renewed(page) == text
        assert blocks.renewed(page, wrong) == text, (day, page, figure)


def test_the_build_begins_with_that_check(monkeypatch, capsys):
    """Of all pages and pictures, the one with another digit is what is out of date."""
    assert re.search(
        r"^docs: .*\n\t\S+ scripts/pages --check$", (ROOT / "Makefile").read_text(), re.M
    )
    page, start, figure = measured()[0]
    real = Path.read_text

    def changed(self, *arguments, **options):
        text = real(self, *arguments, **options)
        if self != page:
            return text
        return text[:start] + other(figure) + text[start + len(figure) :]

    spec = spec_from_loader("pages", SourceFileLoader("pages", str(ROOT / "scripts" / "pages")))
    pages = module_from_spec(spec)
    spec.loader.exec_module(pages)
    monkeypatch.setattr(pages.sys, "argv", ["pages", "--check"])
    monkeypatch.setattr(Path, "read_text", changed)
    assert pages.main() == 1
    first, *changes = filter(None, capsys.readouterr().err.splitlines())
    assert first.startswith(f"{page.relative_to(ROOT)} is out of date")
    assert [line[0] for line in changes] == ["@", "-", "+"], "all else is what the sources make"


@pytest.mark.parametrize("page", sorted({page for page, _ in FIGURES}), ids=lambda page: page.stem)
def test_a_changed_digit_is_noticed(page):
    """Each figure as it stands is what its query gives; with another last digit it is not."""
    for found in (each for of, each in FIGURES if of == page):
        where = f"{page.name}, character {found.start()}"
        assert numbers_of.renewed(found[0]) == found[0], where
        changed = found[0].replace(found["figure"], other(found["figure"]), 1)
        assert numbers_of.renewed(changed) == found[0], where


def test_a_query_is_divided_by_a_number_and_by_a_query():
    whole = "ncu triton/naive l2_bytes"
    assert numbers_of.value(f"{whole} / 1e9") == numbers_of.value(whole) / 1e9
    assert numbers_of.value(f"{whole} / {whole}") == 1
    assert numbers_of.value("compiled.csv backend=cuda,kernel=naive lines_of_source") > 10


@pytest.mark.parametrize(
    "text",
    ["1<!-- = results cuda/naive float16 nn 7 tflops -->", "1<!-- = nothing.csv a=b c -->",
     "1<!-- = ncu cuda/wmma no_such_column -->", "no figure <!-- = ncu cuda/wmma us -->"],
)  # fmt: skip
def test_a_query_that_leads_nowhere_is_an_error(text):
    with pytest.raises(numbers_of.QueryError):
        numbers_of.renewed(text)


@pytest.mark.parametrize(
    ("what", "said"),
    [("cuda_ref/rungs/nothing.cu | a | b", "no file"),
     ("cuda_ref/rungs/naive.cu | no such text | b", "0 lines"),
     ("cuda_ref/rungs/naive.cu | Acc sum = 0; | no such text", "no line from"),
     ("cuda_ref/rungs/wmma_any.cu | wmma_any_kernel(Operand | store_tile", "at most")],
)  # fmt: skip
def test_code_that_moved_away_is_an_error(what, said):
    with pytest.raises(numbers_of.QueryError, match=said):
        blocks.code(what)


def test_code_is_the_source_s():
    assert "a += a_matrix.col_stride;" in blocks.code(
        "cuda_ref/rungs/naive.cu | Acc sum = 0; | b += b_matrix"
    )
