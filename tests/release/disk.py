"""A disk that fills up, or may not be written to, for tests that meet one."""

import subprocess
from pathlib import Path


class Disk:
    """A real file system, small or read-only, in a mount namespace that goes with its process."""

    def __init__(self, place, options):
        place.mkdir()
        script = f"mount -t tmpfs -o {options} tmpfs {place} && echo mounted && read wait"
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.place = place
        self.enter = ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt")
        # The same files, as they are seen from outside of the namespace.
        self.seen = Path(f"/proc/{self.holder.pid}/root{place}")

    def is_mounted(self):
        return self.holder.stdout.readline() == "mounted\n"

    def remount(self, options):
        call = [*self.enter, "mount", "-o", f"remount,{options}", self.place]
        subprocess.run(call, check=True)

    def close(self):
        self.holder.communicate("enough\n")
