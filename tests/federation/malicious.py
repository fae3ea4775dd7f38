"""An aggregator that asks for more than one honest release; what tests of refusals share."""

import json

import pytest

from canal.errors import FederationError
from canal.federation.aggregate import run
from canal.federation.message import Message


def topic(head):
    """What a message is about: the step whose sum is asked for, or its kind."""
    return head["step"] if head["kind"] == "sum" else head["kind"]


class Malicious:
    """A transport that changes the messages about one topic, and remembers all."""

    def __init__(self, inner, kind="", change=lambda head, arrays: None):
        self.inner, self.kind, self.change = inner, kind, change
        self.sent, self.heard = [], []

    @property
    def sites(self):
        return self.inner.sites

    def ask(self, requests):
        changed = {}
        for name, request in requests.items():
            message = Message.from_bytes(request)
            if topic(message.head) == self.kind:
                head, arrays = json.loads(json.dumps(message.head)), dict(message.arrays)
                self.change(head, arrays)
                request = Message(head, arrays).to_bytes()
            changed[name] = request
        answers = self.inner.ask(changed)
        self.sent.append(changed)
        self.heard.append(answers)
        return answers


class Spy(Malicious):
    """A transport that stops when a message about one topic is to be sent."""

    def __init__(self, inner, until=""):
        super().__init__(inner)
        self.until = until

    def ask(self, requests):
        if topic(Message.from_bytes(next(iter(requests.values()))).head) == self.until:
            raise FederationError("stopped")
        return super().ask(requests)

    def heads(self, about):
        """What was said about one topic."""
        sent = [Message.from_bytes(next(iter(requests.values()))).head for requests in self.sent]
        return [dict(head) for head in sent if topic(head) == about]


def tell(site, head, arrays=None):
    """What one site answers; a head of another message may be taken."""
    return Message.from_bytes(site.answer(Message(head, arrays or {}).to_bytes())).head


def journals(hospitals, name="north"):
    return sorted((hospitals.home(name) / "sessions").iterdir())


def upload(head, number):
    """A message about a block of the inputs that a proposal needs."""
    return {"kind": "upload", "session": head["session"], "contract": head["contract"]} | {
        "number": number
    }


def refused(hospitals, order, kind, change, match):
    with pytest.raises(FederationError, match=match):
        run(order, Malicious(hospitals.transport, kind, change))


def unpaid(hospitals):
    return not any(hospitals.charges(name) for name in hospitals.names)


def set_in(*path, value):
    def change(head, arrays):
        at = head
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value(at[path[-1]]) if callable(value) else value

    return change


# A plan with private statistics, at patient level.
PAPER = {"preset": "paper", "plan": {"epsilon": 8.0, "unit": "patient"}}
