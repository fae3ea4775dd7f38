"""A page as a reader meets it: text, table rows, headings, stamps; and every tag is closed."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

VOID = {"meta", "img", "br", "hr", "input", "link", "circle", "line", "path", "rect"}


class Page(HTMLParser):
    """A document, read once.

    Args:
        html: of the whole page.
    """

    def __init__(self, html):
        super().__init__()
        # A line does not end within ε = 8; a test need not know.
        self.html = html.replace("\N{NO-BREAK SPACE}", " ")
        self.open, self.tags, self.attributes, self.text = [], set(), [], []
        self.rows, self.stamps, self.headings = [], [], []
        self.feed(self.html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "h2":
            self.headings.append("")
        if ("class", "stamp") in attrs:
            self.stamps.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text.append(data)
        if "tr" in self.open and "svg" not in self.open:
            self.rows[-1][-1] += data
        if self.open[-1:] == ["h2"]:
            self.headings[-1] += data
        if self.stamps and self.open[-1:] == ["p"] and not self.stamps[-1]:
            self.stamps[-1] = data

    @property
    def words(self):
        return "".join(self.text)

    @property
    def drawings(self):
        found = re.findall(r"<svg.*?</svg>", self.html, re.DOTALL)
        return [ET.fromstring(drawing) for drawing in found]  # noqa: S314  # our own

    def drawing(self, name):
        chosen = [svg for svg in self.drawings if svg[0].get("id") == f"{name}-title"]
        return chosen[0] if chosen else None

    def starting(self, name):
        return [row for row in self.rows if row and row[0].startswith(name)]

    def row(self, name):
        return self.starting(name)[0]


def value(written):
    """Read a number back, independently of how it was written."""
    written = written.replace(",", "")
    superscript = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))
    found = re.fullmatch(r"(?:([\d.]+) × )?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", written)
    if found:
        power = "".join(superscript[letter] for letter in found[2])
        return float(f"{found[1] or 1}e{power}")
    return float(written)


def near(expected):
    """To the four digits that are shown."""
    return pytest.approx(expected, rel=6e-4)
