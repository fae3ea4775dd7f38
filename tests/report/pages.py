"""The page of a run, read as a browser would."""

from canal.report.render import render
from canal.report.run import Run
from reading import Page


def page(folder, arrays=None):
    """Of the run in a folder, with pictures of these images."""
    return Page(render(Run.read(folder), arrays))
