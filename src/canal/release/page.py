"""A page that needs nothing else: no script, nothing to load, and a policy that forbids both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import chain, repeat

from canal.release.digits import prose

STYLE = """
:root { color-scheme: light; --ink: #1a2328; --soft: #52606a; --rule: #d3dbe0; --tint: #f3f6f8;
  --accent: #0b5270; --middle: #5d9cb8; --pale: #d5e6ee; --alarm: #a50d1e; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 3rem 1.5rem 4rem; max-width: 63rem; color: var(--ink);
  background: #fff; font: 1rem/1.55 -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.stamp { margin: 0 0 2.5rem; padding: 1rem 1.25rem; border: 3px solid var(--alarm); color: #fff;
  background: var(--alarm); font-size: 1.25rem; font-weight: 700; line-height: 1.35;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.kind { margin: 0 0 1.25rem; color: var(--accent); font-weight: 600; }
h1 { display: flex; flex-wrap: wrap; gap: 1.25rem 3.5rem; margin: 0 0 1.25rem; font-weight: 400;
  line-height: 1.3; font-size: 1rem; }
h1 span { display: block; color: var(--soft); }
h1 b { display: block; color: var(--ink); font-size: clamp(2.4rem, 7vw, 3.5rem); font-weight: 600;
  letter-spacing: -.02em; line-height: 1.15; white-space: nowrap; }
h1 .paper b { color: var(--soft); }
.lede { max-width: 44rem; margin: 0; font-size: 1.125rem; }
.strip { display: flex; flex-wrap: wrap; gap: .75rem 2.5rem; margin: 1.75rem 0 0; }
.strip dt, th, .field { color: var(--soft); font-size: .8125rem; font-weight: 400; }
dd { margin: 0; }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .4rem 1.5rem;
  margin: 0; }
.facts dt { color: var(--soft); }
section { display: grid; grid-template-columns: 11rem minmax(0, 1fr); gap: 0 2rem;
  margin-top: 2rem; padding-top: 1.25rem; border-top: 1px solid var(--rule); }
section > * { grid-column: 2; }
h2 { grid-column: 1; margin: 0; color: var(--accent); font-size: 1rem; font-weight: 600; }
.wide { display: block; } .wide h2 { margin-bottom: .75rem; }
section > :last-child, section > :last-child > :last-child { margin-bottom: 0; }
p, ul { margin: 0 0 .75rem; } ul { padding: 0; list-style: none; } li { margin: 0 0 .6rem; }
.note { color: var(--soft); font-size: .875rem; }
.box { overflow-x: auto; margin-bottom: .75rem; }
table { width: 100%; border-collapse: collapse; font-size: .9375rem; line-height: 1.45; }
th, td { padding: .5rem 1.25rem .5rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; } td { overflow-wrap: break-word; }
tbody th { color: var(--ink); font-size: inherit; font-weight: 600; }
small { display: block; color: var(--soft); font-weight: 400; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; } .words { width: 31%; }
.reflow th { white-space: nowrap; }
code { font: .875em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
pre { margin: 0 0 .25rem; padding: .6rem .8rem; background: var(--tint); white-space: pre-wrap; }
svg { display: block; width: 100%; } figure { margin: 0 0 1rem; }
figcaption { margin-bottom: .5rem; font-weight: 600; font-size: .9375rem; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1.5rem 3rem; }
.bar { height: 1.75rem; overflow: visible; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .6em;
  border: 1px solid var(--accent); print-color-adjust: exact; -webkit-print-color-adjust: exact; }
rect { stroke: var(--accent); vector-effect: non-scaling-stroke; }
rect.caps { fill: var(--accent); } .swatch.caps { background: var(--accent); }
rect.importance { fill: var(--middle); } .swatch.importance { background: var(--middle); }
rect.features { fill: var(--pale); } .swatch.features { background: var(--pale); }
.chart text { fill: var(--soft); font-size: 12.5px; } .chart .name { fill: var(--ink); }
.grid { stroke: var(--rule); } .tick, .here { stroke: var(--soft); } .here { stroke-width: 1.5; }
.dots, .line { fill: none; stroke: var(--accent); stroke-linecap: round; }
.dots { stroke-width: 6; opacity: .75; }
.line { stroke-width: 2.5; stroke-linejoin: round; } circle { fill: var(--accent); }
.line.image { stroke-dasharray: 9 6; } .line.paper { stroke-dasharray: 0 6; stroke-width: 3.5; }
.fields { display: grid; grid-template-columns: 1fr 1fr; gap: 0 2.5rem; }
.field { margin-top: 3rem; padding-top: .25rem; border-top: 1px solid var(--ink); }
footer { margin-top: 3rem; } footer .stamp { margin: 0 0 1rem; }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1.25rem 3rem; } section, .charts, .fields { display: block; }
  h2 { margin-bottom: .75rem; } h1 { gap: 1rem; } .reflow thead { display: none; }
  .reflow tr { display: grid; grid-template-columns: repeat(4, auto); justify-content: start;
    gap: .4rem .75rem; padding: .75rem 0; border-bottom: 1px solid var(--rule); }
  .reflow th, .reflow td { padding: 0; border: 0; text-align: left; }
  .reflow th, .reflow .words { grid-column: 1 / -1; width: auto; white-space: normal; }
  .reflow .number { min-width: 4.2rem; }
  .reflow td::before { display: block; color: var(--soft); font-size: .8125rem;
    content: attr(data-label); } }
@media print {
  @page { size: A4; margin: 16mm; } :root { font-size: 9pt; }
  body { max-width: none; padding: 0; } .box { overflow: visible; }
  section { margin-top: 1.5rem; }
  section, .stamp, tr, li { break-inside: avoid; } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, parts: Iterable[str], *, style: str = "", pictures: bool = False) -> str:
    """The whole file.

    Args:
        title: of the window.
        parts: of the page, HTML.
        style: rules beside those that all pages have.
        pictures: whether images that are written into the page itself may be shown.
    """
    policy = _POLICY + ("; img-src data:" if pictures else "")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *content: str, style: str = "") -> str:
    """A part of the page under a heading; `wide` where it needs the whole width."""
    kind = f' class="{style}"' if style else ""
    return f"<section{kind}>\n<h2>{title}</h2>\n" + "\n".join(content) + "\n</section>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    words: Sequence[int] = (),
    plots: Sequence[int] = (),
    rows_style: Sequence[str] = (),
    style: str = "",
) -> str:
    """A table in a box of its own; cells are HTML, the first of a row names it.

    Args:
        head: names of the columns.
        rows: their cells.
        numbers: columns that are flush right.
        words: columns of sentences, which a phone gives a line each.
        plots: columns of drawings, which a phone gives its whole width.
        rows_style: a class for each row, where they are not all alike.
        style: `reflow` to stack the cells on a phone.
    """
    named = {"number": numbers, "words": words, "plot": plots}
    kind = [
        "".join(f' class="{name}"' for name, columns in named.items() if index in columns)
        for index in range(len(head))
    ]
    top = "".join(f'<th scope="col"{k}>{name}</th>' for k, name in zip(kind, head, strict=True))
    body = ""
    styles = chain((f' class="{each}"' if each else "" for each in rows_style), repeat(""))
    for (first, *rest), row_style in zip(rows, styles, strict=False):
        cells = "".join(
            f'<td{k} data-label="{name}">{cell}</td>'
            for k, name, cell in zip(kind[1:], head[1:], rest, strict=True)
        )
        body += f'<tr{row_style}><th scope="row">{first}</th>{cells}</tr>\n'
    return (
        f'<div class="box"><table class="{style}"><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for, HTML, one pair below the other."""
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{content}</dd>\n" for name, content in rows)
    return f'<dl class="facts">{pairs}</dl>'


def sentences(words: Iterable[str]) -> str:
    """Plain sentences, one below the other."""
    return bullets(text(sentence) for sentence in words)


def bullets(items: Iterable[str]) -> str:
    """Pieces of HTML, one below the other."""
    return "<ul>" + "\n".join(f"<li>{item}</li>" for item in items) + "</ul>"


def figure(title: str, drawing: str) -> str:
    """A drawing under its title."""
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>"


def note(words: str) -> str:
    """Small print."""
    return f'<p class="note">{text(words)}</p>'


def text(words: object) -> str:
    """Words of the manifest, safe inside HTML."""
    return escape(prose(str(words)))


def code(words: str) -> str:
    """Words for a machine."""
    return f"<code>{escape(words)}</code>"
