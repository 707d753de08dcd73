"""A Sphinx extension: the pages of docs/ as one site, though they are written for a Git host.

Three things differ there. The order of the pages stands in no page: it is read from ``contents``
and given to Sphinx as a hidden table of contents. Links that leave docs/ lead to files of the
repository: sources become pages of the site, data are copied. And the entry is named index.html.
"""

from __future__ import annotations

import re
import shutil
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from contents import SECTIONS
from docutils import nodes
from listings import page_of
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.python import PythonLexer
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.osutil import relative_uri

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
DATA = (".csv", ".txt", ".json", ".toml", ".svg", ".html")
"""Suffixes of files that are copied as they are; all others become highlighted pages."""
LINK = re.compile(r"(\]\()((?:\.\.|_static/|site/)[^)\s#]*)(#[^)\s]*)?\)")
SCHEME = "repo:"
RECORD = ".json.gz"
"""Of what compilers say of a kernel: a page of its own."""
BACK = ' <a href="../side_by_side.html">What to look for</a>.</p>\n</header>'
SHORT, LONG, LONG_NAME, WORD = 8, 48, 16, 28
"""Letters of a table's cell that is kept on one line; of one that is given room, and of one in the
first column; and of a word of code that is kept whole."""


def contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Appends the order of all pages to the first one, and marks links that leave docs/."""
    if docname == "README":
        for title, pages in SECTIONS:
            names = "\n".join(pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{names}\n```\n"
    folder = (DOCS / docname).parent

    def marked(found: re.Match[str]) -> str:
        path = (folder / found[2]).resolve()
        if path.is_relative_to(DOCS) and path.parent.name not in ("_static", "side_by_side"):
            return found[0]
        if not path.exists():
            raise ExtensionError(f"{docname} links to {found[2]}, which does not exist")
        return f"{found[1]}{SCHEME}{path.relative_to(ROOT).as_posix()}{found[3] or ''})"

    source[0] = LINK.sub(marked, source[0])


def target_of(path: str) -> str:
    """Where in the site a file of the repository lies."""
    if path.startswith("docs/_static/"):
        return path.removeprefix("docs/")
    if path.endswith(RECORD):
        return f"side_by_side/{Path(path).name.removesuffix(RECORD)}.html"
    if re.fullmatch(r"reports/[^/]+/README\.md", path):
        return path.replace("README.md", "index.html")
    return f"repository/{path}{'' if path.endswith(DATA) else '.html'}"


def is_prose(path: str) -> bool:
    return path.endswith(".md") and target_of(path).startswith("repository/")


def slug(heading: str) -> str:
    """What a Git host calls a heading in a link."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def place_in(path: str, fragment: str) -> str:
    """The place of a file's page that ``fragment``, a heading's on a Git host, means. Raises
    ExtensionError where the file has no such heading."""
    if not fragment or not path.endswith(".md"):
        return ""
    text = (ROOT / path).read_text()
    headings = {slug(heading): heading for heading in re.findall(r"^#+ (.*)$", text, re.M)}
    fragment = slug(unquote(fragment))
    if fragment not in headings:
        raise ExtensionError(f"{path} has no heading #{fragment}")
    if target_of(path).startswith("repository/"):
        return f"#{fragment}"
    page = (ROOT / path).with_name("index.html").read_text()
    title = rf"<h[23]>{re.escape(escape(headings[fragment], quote=False))}</h[23]>"
    found = re.search(rf'id="([^"]+)">\n(?:<figcaption>)?{title}', page)
    return f"#{found[1]}" if found else ""


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Links to files of the repository, relative to the page that they stand on."""
    wanted: set[str] = app.env.__dict__.setdefault("repository_files", set())
    here = app.builder.get_target_uri(docname)
    for node in doctree.findall(nodes.reference):
        uri = node.get("refuri", "")
        if uri.startswith(SCHEME):
            path, _, fragment = uri.removeprefix(SCHEME).partition("#")
            wanted.add(path)
            node["refuri"] = relative_uri(here, target_of(path)) + place_in(path, fragment)


def linked(app: Sphinx) -> set[str]:
    return app.env.__dict__.get("repository_files", set())


def measure(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Says of a table's cells which are a number and its unit, and which hold a sentence, and of
    code which has short words alone: on a narrow screen numbers and words are not broken, and
    sentences not squeezed (course.css)."""
    for row in doctree.findall(nodes.row):
        for column, cell in enumerate(row.children):
            texts = [
                text for text in cell.findall(nodes.Text) if not isinstance(text.parent, nodes.raw)
            ]
            length = sum(map(len, texts))  # without comments, which queries stand in
            if length <= SHORT:
                cell["classes"].append("short")
            elif length >= (LONG if column else LONG_NAME):
                cell["classes"].append("long")
    for code in doctree.findall(nodes.literal):
        if max(map(len, code.astext().split()), default=0) <= WORD:
            code["classes"].append("whole")


def prose(app: Sphinx, path: str) -> str:
    """A Markdown file outside of docs/ as HTML. What it links to becomes part of the site."""
    markdown, file = MarkdownIt("commonmark").enable("table"), ROOT / path
    tokens = markdown.parse(file.read_text())
    for token, after in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", slug(after.content))
        for link in (child for child in after.children or [] if child.type == "link_open"):
            href = str(link.attrs["href"])
            if href.startswith(("http", "mailto:", "#")):
                continue
            target = (file.parent / href.partition("#")[0]).resolve().relative_to(ROOT).as_posix()
            if target.startswith("docs/") and target.endswith(".md"):
                name = target.removeprefix("docs/").removesuffix(".md")
                uri = app.builder.get_target_uri(name)
            else:
                linked(app).add(target)
                uri = target_of(target)
            link.attrSet("href", relative_uri(target_of(path), uri))
    html = str(markdown.renderer.render(tokens, markdown.options, {}))
    html = re.sub(
        r"<pre><code[^>]*>(.*?)</code></pre>",
        r'<div class="highlight"><pre>\1</pre></div>',
        html,
        flags=re.S,
    )
    return html.replace("<code>", '<code class="literal">')


def listing(file: Path) -> str:
    """A source file with its lines numbered; of a folder, the list of its files."""
    if file.is_dir():
        items = "".join(f"<li><code>{each.name}</code></li>" for each in sorted(file.iterdir()))
        return f"<ul>{items}</ul>"
    text = file.read_text()
    try:
        lexer = get_lexer_for_filename(file.name.replace(".cuh", ".cu"))
    except ClassNotFound:
        lexer = PythonLexer() if "python" in text.partition("\n")[0] else TextLexer()
    formatter = HtmlFormatter(linenos="inline", lineanchors="line", wrapcode=True)
    return str(highlight(text, lexer, formatter))


def pages(app: Sphinx) -> Any:
    """A page for each source file that is linked."""
    written = {path: prose(app, path) for path in sorted(linked(app)) if is_prose(path)}
    for path in sorted(linked(app)):
        if (
            target_of(path).startswith("_static/")
            or path.endswith((*DATA, RECORD))
            or target_of(path).startswith("reports/")
        ):
            continue
        name = target_of(path).removesuffix(".html")
        broken = re.sub(r"([/_])", r"\1<wbr>", path)  # a long name goes on behind one of these
        body = written.get(path) or f"<h1><code>{broken}</code></h1>{listing(ROOT / path)}"
        yield name, {"title": path, "body": body}, "page.html"


def finish(app: Sphinx, failure: Exception | None) -> None:
    """Copies linked data and reports, and lets index.html be the first page."""
    if failure is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for path in sorted(linked(app)):
        target = out / target_of(path)
        if target.parent.name == "_static":
            continue
        if path.endswith(RECORD):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(page_of(ROOT / path).replace("</p>\n</header>", BACK, 1))
            continue
        if target.suffix == ".html" and path.endswith("README.md"):
            source = (ROOT / path).with_name("index.html")
        elif path.endswith(DATA):
            source = ROOT / path
        else:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    shutil.copyfile(out / "README.html", out / "index.html")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", contents)
    app.connect("doctree-resolved", resolve)
    app.connect("doctree-resolved", measure)
    app.connect("html-collect-pages", pages)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
