"""Secret, keys and streams: known answers, separation, and a file that only its owner reads."""

import hashlib
import hmac
import itertools
import os
import stat

import numpy as np
import pytest

from canal.errors import InvalidValueError, SecretError
from canal.privacy import Secret, Stream
from canal.privacy.randomness import SAMPLER


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 by hand, with an empty salt and one block of output."""
    pseudo_random_key = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(pseudo_random_key, info + b"\x01", "sha256")


def test_stream_is_chacha20_of_the_rfc():
    """RFC 8439, appendix A.1, test vectors 1 and 2 (blocks 0 and 1 of the zero key)."""
    block_0 = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    block_1 = (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert Stream(bytes(32)).words(16).astype("<u8").tobytes().hex() == block_0 + block_1


def test_a_stream_goes_on_where_it_was():
    whole = Stream(bytes(32)).words(200_000)
    stream = Stream(bytes(32))
    parts = [stream.words(n) for n in (1, 7, 65_536, 134_456)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_keys_are_unrelated():
    streams = [Stream(bytes(32)), Stream(b"\x01" + bytes(31)), Stream(bytes(31) + b"\x01")]
    words = [stream.words(4096) for stream in streams]
    for a, b in itertools.combinations(words, 2):
        # 262,144 fair coins: six sigma is 1,536; false-alarm rate 2e-9 a pair.
        assert abs(int(np.bitwise_count(a ^ b).sum()) - 131_072) < 1536


def test_key_is_hkdf_of_the_lengths_and_parts():
    secret = Secret(bytes(range(32)), private=True)
    parts = (b"canal noise", SAMPLER, b"plan", b"teachers", b"image")
    info = b"".join(len(p).to_bytes(8, "big") + p for p in parts)
    assert secret.key(b"plan", b"teachers", b"image") == hkdf(bytes(range(32)), info)


def test_any_difference_gives_another_key():
    secret = Secret.seeded(1)
    contexts = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"ab", b"d"), (b"c", b"ab"), ()]
    keys = {secret.key(*context) for context in contexts}
    assert len(keys) == len(contexts)
    assert secret.key(b"ab", b"c") == Secret.seeded(1).key(b"ab", b"c")
    assert secret.key(b"ab", b"c") != Secret.seeded(2).key(b"ab", b"c")


def test_a_secret_is_kept_for_its_owner_only(tmp_path):
    path = tmp_path / "secret"
    before = os.umask(0)  # even where the umask would let others in
    try:
        made = Secret.create(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Secret.load(path) == made
    assert made.private
    assert Secret.create(tmp_path / "other") != made
    with pytest.raises(SecretError, match="exists already"):
        Secret.create(path)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["other", "secret"]


def test_killed_while_destroying_leaves_nothing_usable(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(bytes(32))  # overwritten, not yet unlinked
    path.chmod(0o600)
    with pytest.raises(SecretError, match="destroyed"):
        Secret.load(path)


def test_an_exposed_secret_is_refused(tmp_path):
    path = tmp_path / "secret"
    Secret.create(path)
    path.chmod(0o640)
    with pytest.raises(SecretError, match="0640"):
        Secret.load(path)


def test_a_destroyed_secret_is_gone(tmp_path):
    path = tmp_path / "secret"
    value = Secret.create(path).value
    (tmp_path / "hard link").hardlink_to(path)
    Secret.destroy(path)
    assert not path.exists()
    assert (tmp_path / "hard link").read_bytes() == bytes(32) != value  # overwritten, not only gone
    Secret.destroy(path)  # saying it twice is saying it once
    with pytest.raises(SecretError, match="cannot be resumed"):
        Secret.load(path)


def test_a_secret_never_shows():
    secret = Secret(os.urandom(32), private=True)
    assert secret.value.hex() not in f"{secret!r} {secret}"
    assert str(secret.value) not in f"{secret!r} {secret}"


def test_research_noise_says_so():
    assert Secret.seeded(3).source == "seeded, not private"
    assert not Secret.seeded(3).private
    assert Secret.seeded(3).value == hashlib.sha256(b"canal research seed 3").digest()


def test_errors(tmp_path):
    with pytest.raises(SecretError, match="32 bytes"):
        Secret(b"short", private=True)
    (tmp_path / "cut").write_bytes(b"short")
    (tmp_path / "cut").chmod(0o600)
    with pytest.raises(SecretError, match="32 bytes"):
        Secret.load(tmp_path / "cut")
    with pytest.raises(SecretError, match="choose a folder"):
        Secret.create(tmp_path / "nowhere" / "secret")
    with pytest.raises(InvalidValueError, match="32 bytes"):
        Stream(b"short")
    with pytest.raises(InvalidValueError, match="seed"):
        Secret.seeded(-1)


def test_a_stream_ends_before_it_repeats():
    stream = Stream(bytes(32))
    stream._left = 64
    stream.words(8)
    with pytest.raises(InvalidValueError, match="another key"):
        stream.words(1)
