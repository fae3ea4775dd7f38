"""What a golden release is, as plain values that a person can compare line by line."""

import hashlib
import json
import re

import numpy as np
from safetensors.numpy import load_file

from canal.privacy import Ledger
from canal.privacy.ledger import balances
from golden.releases import say
from reading import Page

LONG = 8  # a list that is longer is told by its length, its ends and its digest
HEX = re.compile(r"[0-9a-f]{64}")

# Their cards are worded as those of others are, and only their digests are pinned.
ALIKE = (
    "features-statistics",
    "features-across-paid",
    "gradients-counted",
    "gradients-across-paid",
)
DRAWING = re.compile("<svg.*?</svg>", re.DOTALL)


def record(root, made):
    """Everything that is pinned of one release."""
    manifest = json.loads((made.folder / "manifest.json").read_text())
    html = (made.folder / "card.html").read_text()
    # They follow from every byte of the code, and nothing else here does.
    changing = {
        **dict.fromkeys(manifest["record"]["code"], "CODE"),
        manifest["digest"]: "MANIFEST",
        manifest["software"]: "SOFTWARE",
    }
    found = {
        "manifest": manifest,
        "card": card(replaced(html, changing), made.name),
        "files": {path.name: tensors(path) for path in sorted(made.folder.iterdir())},
        "verify": verified(root, made),
        "ledgers": {name: charged(path) for name, path in made.ledgers.items()},
        "transcript": transcript(made),
    }
    return shortened(json.loads(replaced(json.dumps(found, ensure_ascii=False), changing)))


def replaced(text, names):
    """Also where only the first twelve digits are shown."""
    for long, name in names.items():
        text = text.replace(long, name)
        if HEX.fullmatch(long):
            text = text.replace(long[:12], f"{name}:12")
    return text


def card(html, name):
    """Every piece of text, in order, but for labels of drawings; and the digest of all of it."""
    if name in ALIKE:
        return {"sha256": sha256(html.encode())}
    text = Page(DRAWING.sub("", html)).text
    pieces = [" ".join(piece.split()) for piece in text if piece.strip()]
    return {"lines": pieces, "sha256": sha256(html.encode())}


def tensors(path):
    """Of a file of tensors, what each is, as any program would read it."""
    if path.suffix != ".safetensors":
        return {}
    head = path.read_bytes()
    head = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])
    return {"metadata": head.get("__metadata__", {})} | arrays(load_file(path))


def arrays(found):
    """Of each what it is; of many, their names, the digest of all, and one of them."""
    said = {name: array(values) for name, values in sorted(found.items())}
    if len(said) <= LONG:
        return said
    names, digest = list(said), sha256(json.dumps(said).encode())
    return {"names": names, "sha256": digest, names[0]: said[names[0]]}


def array(values):
    """Digest, and enough of it to see in which direction a change went."""
    values = np.ascontiguousarray(values)
    return {
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "sha256": sha256(values.astype(values.dtype.newbyteorder("<")).tobytes()),
        "first": values.ravel()[:6].tolist(),
    }


def verified(root, made):
    """Every check that `canal release verify` makes; for two releases, of what is public, too."""
    words = ["release", "verify", made.folder, "--ledger", next(iter(made.ledgers.values()))]
    if made.name in ("features", "gradients"):
        words += ["--init", "init", "--queries", "queries"]
    checks = json.loads(say(root, *words, "--allow-not-private", "--json"))["checks"]
    return {check["what"]: check["passed"] for check in checks}


def charged(path):
    """Rows and balances; not when, and no hashes."""
    rows = Ledger(path, must_exist=True).rows()
    kept = ("action", "cohort", "unit", "rho", "draws", "note")
    return {
        "rows": [{name: getattr(row, name) for name in kept} for row in rows],
        "balances": [vars(each) for each in balances(rows)],
    }


def transcript(made):
    """All messages, in order; where secrets hide most of them, what they were about."""
    if "paid" in made.name:
        return [sent[min(sent)].head["kind"] for sent, _ in made.asked]
    known: dict[str, str] = {}
    found = [exchange(*each) for each in made.asked]
    for number, each in enumerate(found):
        for message in each["asked"].values():
            for name, value in message["head"].items():
                before = known.setdefault(json.dumps([name, value]), f"as in message {number}")
                if len(json.dumps(value)) > 100 and before != f"as in message {number}":
                    message["head"][name] = before
    return found


def exchange(sent, answered):
    """One question to all sites and their answers; parties that say the same are told once."""
    questions = {site: told(message) for site, message in sent.items()}
    answers = {site: told(message) for site, message in answered.items()}
    return {"asked": together(questions), "answered": together(answers), "sum": summed(answered)}


def told(message):
    return {"head": dict(message.head), "arrays": arrays(message.arrays)}


def together(by_site):
    same = all(each == by_site[min(by_site)] for each in by_site.values())
    return {"all": by_site[min(by_site)]} if same else dict(sorted(by_site.items()))


def summed(answered):
    """Masks cancel in the sum of all answers: it has the same bytes each time, and they do not."""
    found = {}
    for name in sorted(answered[min(answered)].arrays):
        parts = [message.arrays[name] for message in answered.values()]
        if len(parts) > 1 and all(part.dtype == np.uint32 for part in parts):
            found[name] = array(np.sum(parts, axis=0, dtype=np.uint32))
    return found


def shortened(value):
    """The same with long lists and long texts told by their digests."""
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    if isinstance(value, str) and len(value) > 2000:
        return {"text": value[:80], "length": len(value), "sha256": sha256(value.encode())}
    if not isinstance(value, list):
        return value
    if len(value) > LONG and not any(isinstance(each, str | dict) for each in value):
        ends = value[:2] + value[-2:]
        digest = sha256(json.dumps(value).encode())
        return {"ends": ends, "length": len(value), "sha256": digest}
    return [shortened(each) for each in value]


def sha256(content):
    return hashlib.sha256(content).hexdigest()
