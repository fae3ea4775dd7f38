import threading
import time

import pytest

from canal.errors import FederationError
from canal.federation.transport import InMemory


def test_each_site_gets_its_own_bytes_and_answers_come_in_the_order_of_the_requests() -> None:
    there = InMemory({name: lambda message, name=name: name.encode() + message for name in "abc"})
    assert there.sites == ("a", "b", "c")
    assert list(there.ask({"c": b"1", "a": b"2"}).items()) == [("c", b"c1"), ("a", b"a2")]


def test_sites_are_asked_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=10)
    there = InMemory({name: lambda _: str(meeting.wait()).encode() for name in "abc"})
    assert sorted(there.ask(dict.fromkeys("abc", b"")).values()) == [b"0", b"1", b"2"]


def test_whoever_fails_is_named_and_the_others_are_not_taken() -> None:
    def fail(_: bytes) -> bytes:
        raise RuntimeError("disk full")

    there = InMemory({"a": bytes, "b": fail})
    with pytest.raises(FederationError, match=r"no answer from b \(disk full\)") as error:
        there.ask({"a": b"", "b": b""})
    assert "a (" not in str(error.value)


def test_whoever_hangs_is_named_in_time() -> None:
    free = threading.Event()
    there = InMemory({"a": bytes, "b": lambda _: bytes(free.wait(30))}, seconds=0.2)
    began = time.monotonic()
    with pytest.raises(FederationError, match=r"b \(silent for 0.2 s\)"):
        there.ask({"a": b"", "b": b""})
    assert time.monotonic() - began < 5
    free.set()


def test_an_answer_that_is_not_bytes_is_none() -> None:
    there = InMemory({"a": lambda _: "text"})  # type: ignore[arg-type,return-value]
    with pytest.raises(FederationError, match="a "):
        there.ask({"a": b""})


def test_a_stranger_is_refused_before_anybody_is_asked() -> None:
    heard: list[bytes] = []
    there = InMemory({"a": lambda message: heard.append(message) or b""})  # type: ignore[func-returns-value]
    with pytest.raises(FederationError, match="no site z in this federation; it has a"):
        there.ask({"a": b"", "z": b""})
    assert heard == []
