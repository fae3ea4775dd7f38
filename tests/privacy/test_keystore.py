"""Where keys are kept: in memory where there is any, whole or not at all, and surely erased."""

import itertools
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from canal.errors import SecretError, SecretLostError
from canal.privacy import Secret
from canal.privacy.keystore import is_in_memory, is_kept, is_there, key_store

MEMORY = Path("/dev/shm")  # noqa: S108
needs_memory = pytest.mark.skipif(not is_in_memory(MEMORY), reason="no memory for files here")
OPERATIONS = {
    "open",
    *(f"os.{name}" for name in ("link", "symlink", "mkdir", "remove", "rmdir", "fsync")),
}


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    """None, or a folder that stands for memory."""
    if request.param == "disk":
        return None
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "private").mkdir(mode=0o700)
    return tmp_path / "private" / "secret"


def everything(folder):
    """All that lies in a folder, links that lead nowhere included."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@needs_memory
def test_memory_is_taken_where_there_is_any(monkeypatch, tmp_path):
    monkeypatch.delenv("CANAL_KEYS")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert key_store() == MEMORY
    own = MEMORY / f"canal-test-{os.getpid()}"
    own.mkdir(mode=0o700)
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
        assert key_store() == own
    finally:
        own.rmdir()
    assert key_store() == MEMORY
    if not is_in_memory(tmp_path):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # a disk that claims to be memory
        assert key_store() == MEMORY
        monkeypatch.setattr("canal.privacy.keystore._SHARED_MEMORY", str(tmp_path))
        assert key_store() is None
        monkeypatch.setenv("CANAL_KEYS", "memory")
        with pytest.raises(SecretError, match="CANAL_KEYS = 'memory' cannot be had here"):
            key_store()


def test_the_user_chooses(monkeypatch, tmp_path):
    monkeypatch.setenv("CANAL_KEYS", "disk")
    assert key_store() is None
    monkeypatch.setenv("CANAL_KEYS", str(tmp_path))
    assert key_store() == tmp_path
    for wrong in ("dsik", "memory/keys", str(tmp_path / "nowhere")):
        monkeypatch.setenv("CANAL_KEYS", wrong)
        with pytest.raises(SecretError, match="let it be disk, or the absolute path"):
            key_store()


def test_a_folder_of_its_own_for_every_key(path, tmp_path):
    memory = tmp_path / "memory"
    memory.mkdir()
    before = os.umask(0)
    try:
        made = Secret.create(path, memory)
    finally:
        os.umask(before)
    assert path.is_symlink()
    target = path.readlink()
    assert target.parent.parent == memory
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert everything(path.parent) == ["secret"]
    assert Secret.load(path) == made
    (tmp_path / "hard link").hardlink_to(target)
    Secret.destroy(path)
    assert (tmp_path / "hard link").read_bytes() == bytes(32)
    assert not everything(path.parent) + everything(memory)


def test_a_key_that_is_there_is_never_replaced(path, store):
    made = Secret.create(path, store)
    with pytest.raises(SecretError, match="exists already"):
        Secret.create(path, store)
    assert Secret.load(path) == made
    Secret.destroy(path)
    assert not everything(path.parent) + everything(store or path.parent)


def test_what_memory_forgot_is_not_what_never_was(path, tmp_path):
    (tmp_path / "memory").mkdir()
    assert not is_kept(path)
    Secret.create(path, tmp_path / "memory")
    path.readlink().unlink()  # a reboot
    assert is_kept(path)
    assert not is_there(path)
    with pytest.raises(SecretLostError, match="a reboot clears memory"):
        Secret.load(path)


def test_what_others_put_behind_our_link_is_refused(path, tmp_path, monkeypatch):
    """After a reboot the name of the folder is free, and shared memory is everybody's."""
    (tmp_path / "memory").mkdir()
    Secret.create(path, tmp_path / "memory")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SecretLostError, match="a file of another user"):
        Secret.load(path)


class Killed(BaseException):
    """What nothing in the code expects."""


VALUE = bytes(range(7, 39))


@pytest.fixture
def interrupted(tmp_path):
    """Do something in a child that dies at the n-th operation on files; say whether it did."""

    def run(work, at):
        child = os.fork()
        if child == 0:
            calls = itertools.count(1)

            def watch(event, arguments):
                mine = event in OPERATIONS and str(arguments[0]).startswith(str(tmp_path))
                if mine and next(calls) == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(watch)
            try:
                work()
            finally:
                os._exit(0)
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])

    return run


def test_killed_while_it_is_kept_or_erased(path, store, interrupted):
    """Before every operation: all of the key or none; the next one leaves nothing of it."""
    for at in itertools.count(1):
        died = interrupted(lambda: Secret.keep(VALUE, path, store), at)
        if is_kept(path):
            assert Secret.load(path).value == VALUE
        else:
            Secret.keep(VALUE, path, store)
        Secret.destroy(path)
        assert not everything(path.parent) + everything(store or path.parent)
        if not died:
            break
    assert at >= (4 if store is None else 7)
    for at in itertools.count(1):
        Secret.keep(VALUE, path, store)
        died = interrupted(lambda: Secret.destroy(path), at)
        Secret.destroy(path)
        assert not everything(path.parent) + everything(store or path.parent)
        if not died:
            break
    assert at >= (3 if store is None else 5)


def test_what_an_older_version_left_is_erased(path):
    (path.parent / ".secret-k3x_9a").write_bytes(VALUE)
    assert is_there(path)
    Secret.destroy(path)
    assert not everything(path.parent)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the limit is set")
@pytest.mark.parametrize("kept", [True, False])
def test_a_process_with_a_key_leaves_no_core_dump(kept, tmp_path):
    """And one without may; so the test can tell."""
    program = (
        "import ctypes, resource, sys; from pathlib import Path; from canal.privacy import Secret\n"
        f"if {kept}: Secret.create(Path({str(tmp_path / 'secret')!r}))\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )

    def limit():
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    done = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=limit, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    most, dumpable = map(int, done.stdout.split())
    assert (most == 0, dumpable) == ((True, 0) if kept else (False, 1))
