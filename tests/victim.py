"""A release folder that is changed, forged, and made whole again; of either kind."""

import json
from contextlib import suppress

from canal.release.manifest import CARD, MANIFEST, Manifest


class Victim:
    """A folder, and the card that a manifest of its kind has.

    Args:
        folder: of the release.
        render: the card of a manifest.
    """

    def __init__(self, folder, render):
        self.folder, self._render = folder, render
        self.whole = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.shards = sorted(name for name in self.whole if name.endswith(".safetensors"))

    def heal(self):
        for path in self.folder.iterdir():
            if path.name not in self.whole:
                path.unlink()
        for name, content in self.whole.items():
            (self.folder / name).write_bytes(content)

    def content(self):
        """The manifest as plain values, without its digest."""
        content = json.loads(self.whole[MANIFEST])
        return {name: content[name] for name in content if name not in ("format", "digest")}

    def forge(self, content):
        """Write a manifest whose digest holds, and the card that belongs to it."""
        manifest = Manifest(**content)
        (self.folder / MANIFEST).write_bytes(manifest.to_bytes())
        with suppress(Exception):  # a manifest that has no card keeps the old one
            (self.folder / CARD).write_bytes(self._render(manifest).encode())
