"""Where a key is kept on this machine: in memory if there is memory for files, for its owner only.

A file that was overwritten on an SSD or a journaling file system may be there still: the device
writes elsewhere, and says nothing. So a key goes into a file system that is memory (tmpfs, ramfs),
and the private folder holds a symbolic link to it. What a backup or a snapshot of the private
folder then copies is a link. A reboot destroys such a key, and with it the unfinished release.

`CANAL_KEYS` chooses:

=================  ================================================================================
not set            `$XDG_RUNTIME_DIR`, else `/dev/shm`, if that is memory; else the private folder
`memory`           the same, and an error where there is none
`disk`             the private folder: an unfinished release survives a reboot
an absolute path   a folder of the user's choice, such as an encrypted disk
=================  ================================================================================
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

from canal.errors import SecretError, SecretLostError
from canal.files import fsync_folder

KEYS = "CANAL_KEYS"
_IN_MEMORY = ("tmpfs", "ramfs")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a folder of our own is made there, mode 0700
_PR_SET_DUMPABLE = 4


def key_store() -> Path | None:
    """The folder for keys that this machine offers; None for the private folder itself.

    Raises:
        SecretError: `CANAL_KEYS` asks for what is not there.
    """
    asked = os.environ.get(KEYS, "")
    if asked == "disk":
        return None
    if asked in ("", "memory"):
        for place in filter(None, (os.environ.get("XDG_RUNTIME_DIR"), _SHARED_MEMORY)):
            if is_in_memory(Path(place)) and os.access(place, os.W_OK | os.X_OK):
                return Path(place)
        if not asked:
            return None
    elif Path(asked).is_absolute() and os.access(asked, os.W_OK | os.X_OK):
        return Path(asked)
    raise SecretError(
        f"{KEYS} = {asked!r} cannot be had here; let it be disk, or the absolute path of a folder "
        "that you may write to, or leave it out"
    )


def is_in_memory(folder: Path) -> bool:
    """Whether files in a folder live in memory alone (and in swap, where there is any)."""
    try:
        device = folder.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return False
    here = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        about, _, system = line.partition(" - ")
        if about.split()[2] == here:
            return system.split()[0] in _IN_MEMORY
    return False


def keep(value: bytes, path: Path, store: Path | None) -> None:
    """Have a key in a new file, mode 0600, for good.

    Args:
        value: the key.
        path: the file; with a store, a link to the file there.
        store: folder in memory, or None.

    Guarantees:
        `path` is there with the whole key behind it, or not at all, and never replaces another.
        What a process that was killed in between has left, the next one erases here.
    """
    for left in _unfinished(path):
        _erase(left)
    part = path.with_name(f".{path.name}")
    target = part if store is None else store / f"canal-{os.urandom(8).hex()}" / path.name
    try:
        if store is not None:
            # Said before it is done: whoever comes after a kill knows where to look.
            part.symlink_to(target)
            target.parent.mkdir(mode=0o700)
        _write(value, target)
        if store is None:
            os.link(part, path)
        else:
            path.symlink_to(target)
    except BaseException:
        if os.path.lexists(part):
            _erase(part)
        raise
    part.unlink()
    fsync_folder(path.parent)


def erase(path: Path) -> None:
    """Overwrite a key and remove it, wherever it is; one that is gone already is as good."""
    there = [each for each in (path, *_unfinished(path)) if os.path.lexists(each)]
    for each in there:
        _erase(each)
    if there:
        fsync_folder(path.parent)


def is_kept(path: Path) -> bool:
    """Whether a key was ever kept here and not erased, though memory may have lost it since."""
    return os.path.lexists(path)


def is_there(path: Path) -> bool:
    """Whether a key, or the part of one that a killed process left, can be read here."""
    return any(each.is_file() and any(each.read_bytes()) for each in (path, *_unfinished(path)))


def check_owner(path: Path) -> None:
    """Refuse a file that others could have read, or have put where a link of ours leads.

    Raises:
        SecretLostError: it is not for its owner only, or not ours.
        OSError: it cannot be looked at.
    """
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise SecretLostError(
            f"{path} has mode {mode:04o}, so others may have read the secret; "
            "make a new release with a new secret"
        )
    if path.is_symlink() and found.st_uid != os.geteuid():
        raise SecretLostError(
            f"{path} leads to a file of another user, so others may know the secret; "
            "make a new release with a new secret"
        )


def no_core_dumps() -> None:
    """Have this process leave no image of its memory behind, and let no other process read it.

    A program that is started from it is not concerned. Does nothing where there is no such thing.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            # Where dumps go to a program, the limit above does not count; this does.
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _unfinished(path: Path) -> list[Path]:
    """What `keep` has before it has the file itself."""
    return sorted(path.parent.glob(f".{path.name}*"))


def _write(value: bytes, path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(value)
        file.flush()
        os.fsync(file.fileno())


def _erase(path: Path) -> None:
    target = path.readlink() if path.is_symlink() else path
    with contextlib.suppress(FileNotFoundError):
        with target.open("r+b") as file:
            file.write(bytes(target.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        target.unlink()
    if target != path:
        with contextlib.suppress(FileNotFoundError):
            target.parent.rmdir()
        path.unlink()
