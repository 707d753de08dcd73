"""docs/for_teachers.md: each question is answered where it says, by the sentence that it quotes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tcgemm.tools.exercise.catalogue import EXERCISES

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "for_teachers.md").read_text()
QUESTIONS = re.findall(r'^\| (\d+)\. (.*?\?) \| (.*?) \| "(.*?)" \|$', PAGE, re.M)
HEADING = re.compile(r"^(#+) (.*)$", re.M)


def section(page, anchor):
    """What stands under a heading, up to the next of its level or above; the whole page without."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    if not anchor:
        return text
    headings = list(HEADING.finditer(text))
    for i, heading in enumerate(headings):
        slug = re.sub(r"[^\w\- ]", "", heading[2].strip().lower()).replace(" ", "-")
        if slug == anchor:
            later = [h.start() for h in headings[i + 1 :] if len(h[1]) <= len(heading[1])]
            return text[heading.start() : later[0] if later else len(text)]
    raise AssertionError(f"{page.name} has no heading {anchor}")


def test_there_are_ten():
    assert [int(number) for number, *_ in QUESTIONS] == list(range(1, 11))


@pytest.mark.parametrize(
    ("question", "where", "sentence"), [one[1:] for one in QUESTIONS], ids=lambda text: text[:24]
)
def test_the_answer_stands_where_the_link_leads(question, where, sentence):
    links = re.findall(r"\]\(([^)#]+)#?([^)]*)\)", where)
    assert links
    sections = [section(DOCS / path, anchor) for path, anchor in links]
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sections[0])  # what a link shows
    assert sentence in words.replace("\n", " ")


def test_every_exercise_is_in_a_session():
    rows = re.findall(r"^\| \d\. [\w ]+ \|.*\| ([\d, ]+) \|$", PAGE, re.M)
    named = [int(number) for row in rows for number in row.split(", ")]
    assert len(rows) == 4
    assert sorted(named) == list(range(1, len(EXERCISES) + 1))
