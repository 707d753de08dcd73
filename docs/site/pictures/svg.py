"""A few shapes of SVG, and the colours that mean the same in every picture."""

from __future__ import annotations

from html import escape

A, B, C = "#4c78a8", "#e58a1f", "#4f9a4a"
A_LIGHT, B_LIGHT, C_LIGHT = "#d7e3f0", "#fce6cc", "#d9ecd6"
RED, GREY, LIGHT, INK = "#d1495b", "#8a8f98", "#eceff3", "#20242a"
BANKS = tuple(f"hsl({hue}, 62%, {light}%)" for light in (82, 66) for hue in range(0, 360, 45))
"""Eight hues, light and dark: for groups of banks."""


class Svg:
    """A picture ``width`` by ``height`` pixels; y grows downwards."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str = "none", stroke: str = INK,
        width: float = 1, dash: str = "",
    ) -> None:  # fmt: skip
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="{width:g}"{dashes}/>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = INK, width: float = 1,
        arrow: bool = False, dash: str = "",
    ) -> None:  # fmt: skip
        head = ' marker-end="url(#head)"' if arrow else ""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
            f'stroke-width="{width:g}"{head}{dashes}/>'
        )

    def path(self, points: list[tuple[float, float]], stroke: str = INK, width: float = 2) -> None:
        text = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(
            f'<polyline points="{text}" fill="none" stroke="{stroke}" stroke-width="{width:g}"/>'
        )

    def text(
        self, x: float, y: float, words: object, size: float = 13, anchor: str = "start",
        fill: str = INK, bold: bool = False, turned: bool = False,
    ) -> None:  # fmt: skip
        weight = ' font-weight="600"' if bold else ""
        turn = f' transform="rotate(-90 {x:g} {y:g})"' if turned else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="{fill}"{weight}{turn}>{escape(str(words))}</text>'
        )

    def cell(
        self, x: float, y: float, w: float, h: float, words: object, fill: str, size: float = 11,
        stroke: str = "#ffffff", ink: str = INK,
    ) -> None:  # fmt: skip
        """A box with a word in its middle."""
        self.rect(x, y, w, h, fill, stroke)
        if str(words):
            self.text(x + w / 2, y + h / 2 + size * 0.36, words, size, "middle", ink)

    def __str__(self) -> str:
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" '
            'font-family="Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker>'
            "</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>\n{body}\n</svg>\n'
        )
