"""How a drawing looks that stands in a file of its own, without the style of a page."""

from __future__ import annotations

STYLE = (
    "text{font:12px sans-serif;fill:#52606a}.name{fill:#1a2328}path{fill:none}"
    ".grid{stroke:#d3dbe0}.tick{stroke:#52606a}.line{stroke-width:2.5}"
)


def alone(svg: str, looks: str = "") -> str:
    """A drawing of a page (`canal.release.chart`) as a file.

    Args:
        svg: the drawing.
        looks: CSS of its own lines.
    """
    return svg.replace("<title", f"<style>{STYLE}{looks}</style><title", 1) + "\n"
