"""How the report looks beyond what all pages share, and the legends of its charts."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

STYLE = """
header h1 { margin-bottom: 1.75rem; } h1 span { max-width: 24rem; }
.lede { margin-bottom: .6rem; }
.forest th, .forest td { vertical-align: middle; } .forest th small { white-space: normal; }
.plot { width: 40%; min-width: 9rem; } tbody .plot { padding-top: 0; padding-bottom: 0; }
.whiskers { width: 100%; height: 2.9rem; overflow: visible; }
.whiskers .range { stroke: var(--accent); stroke-width: 2.5; stroke-linecap: round; }
.whiskers .zero { stroke: var(--soft); stroke-dasharray: 3 4; }
.whiskers .off { fill: var(--middle); font-size: 1rem; }
.told small { font-size: .875rem; white-space: normal; }
.promises .words { width: 42%; } .narrow { max-width: 44rem; }
.lighter th, .lighter td { color: var(--soft); font-weight: 400; }
.lighter .range { stroke: var(--middle); } .lighter circle { fill: var(--middle); }
.axis { position: relative; height: 1.5rem; border-top: 1px solid var(--soft);
  color: var(--soft); font-size: .8125rem; }
.axis span { position: absolute; top: .2rem; transform: translateX(-50%); }
.axis span::before { content: ""; position: absolute; top: -.2rem; left: 50%; height: .3rem;
  border-left: 1px solid var(--soft); }
.last th, .last td { border-bottom: 0; color: var(--soft); font-size: .8125rem;
  font-weight: 400; vertical-align: top; }
.last .plot { padding-top: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.75rem; font-size: .875rem; }
.legend li { margin: 0; }
.key { display: inline-block; margin-right: .6em; color: var(--accent); font-weight: 700; }
.key.line { width: 1.9em; height: 0; margin-bottom: .3em;
  border-top: 3px solid var(--accent); }
.key.allowed { border-top-style: dashed; border-color: var(--soft); }
.key.chance { border-top: 3px dotted var(--soft); }
.crosses { fill: none; stroke: var(--alarm); stroke-width: 2; stroke-linecap: round; }
.key.crosses { color: var(--alarm); }
.line.allowed { stroke: var(--soft); stroke-dasharray: 9 6; }
.line.chance { stroke: var(--soft); stroke-dasharray: 0 6; }
.line.often { stroke-dasharray: 9 6; } .line.once { stroke-dasharray: 0 6; stroke-width: 3.5; }
.beside { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 6fr); gap: 1.5rem 3rem;
  align-items: start; margin-bottom: 1.5rem; }
h3 { margin: 0 0 .5rem; font-size: 1rem; font-weight: 600; }
.panels { display: grid; gap: .75rem; margin-bottom: 1rem; }
.panels figure { margin: 0; } .panels img { display: block; width: 100%; height: auto; }
.panels figcaption { margin: .25rem 0 0; color: var(--soft); font-size: .8125rem;
  font-weight: 400; line-height: 1.35; }
.mark { max-width: 16rem; color: var(--alarm); font-weight: 600; white-space: normal; }
.fault th, .fault td { color: var(--alarm); font-weight: 600; }
.fault td::before { font-weight: 400; }
.bars td, .bars th { vertical-align: middle; } .bars .bar { margin: .5rem 0; height: 1.4rem; }
@media (max-width: 40rem) {
  h1 span { max-width: none; } .beside { display: block; } .mark { max-width: none; }
  .promises .words { width: auto; }
  .charts > * + * { margin-top: 2rem; } .plot { width: auto; min-width: 0; }
  .reflow .plot { grid-column: 1 / -1; } .reflow .plot::before { display: none; }
  .bars tr { justify-content: stretch; }
  .forest tr { grid-template-columns: minmax(0, 1fr) 6.2rem 5.6rem; justify-content: stretch;
    align-items: end; padding: .6rem 0 0; border-bottom: 0; }
  .forest th { grid-column: 1; } .forest .number { min-width: 0; text-align: right; }
  .forest .plot { order: 1; padding: 0 .5rem; } .whiskers { height: 1.75rem; }
  .forest tr + tr .number::before { display: none; }
  .last > :not(.plot) { display: none; } .forest .last { padding-top: 0; }
  .panels { grid-template-columns: repeat(3, minmax(0, 1fr)) !important; } }
@media print {
  .panels, .beside, figure { break-inside: avoid; } h2, h3 { break-after: avoid; }
  section.long { break-inside: auto; } img { print-color-adjust: exact; } }
"""
DOT, CROSS = "●", "×"


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """What is what in a chart: class, sign, name."""
    items = "".join(
        f'<li><span class="key {style}" aria-hidden="true">{sign}</span>{escape(name)}</li>'
        for style, sign, name in entries
    )
    return f'<ul class="legend">{items}</ul>'


def swatches(entries: Iterable[tuple[str, str]]) -> str:
    """The same for the parts of a bar: class, name."""
    items = "".join(
        f'<li><span class="swatch {style}"></span>{escape(name)}</li>' for style, name in entries
    )
    return f'<ul class="legend">{items}</ul>'
