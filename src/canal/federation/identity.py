"""Who a site is: a certificate that the others know beforehand, and the key behind it.

FLARE's startup kit has both. What the others know is the certificate's SHA-256 (the *roster*),
compared out of band, by phone say: whoever hands certificates out could make a second one under the
same name, and its fingerprint would be another.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.errors import FederationError, RefusalError
from canal.files import replace_file

if TYPE_CHECKING:
    from cryptography import x509

CERTIFICATE = "identity.crt"
KEY = "identity.key"
_YEARS = 10


@dataclass(frozen=True)
class Identity:
    """A site's own.

    Args:
        certificate: PEM, public.
        key: PEM, without a password; it stays at the site.
    """

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def load(cls, certificate: Path, key: Path) -> Identity:
        """Read both files."""
        try:
            found = cls(certificate.read_bytes(), key.read_bytes())
        except OSError as error:
            raise FederationError(
                f"cannot read {error.filename}: {error.strerror}; it is in the startup kit"
            ) from error
        verify(found.certificate, b"canal", found.sign(b"canal"))
        return found

    @classmethod
    def create(cls, folder: Path, name: str) -> Identity:
        """Make one that nobody else vouches for, as a rehearsal needs it; or find it there."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        if (folder / CERTIFICATE).is_file():
            return cls.load(folder / CERTIFICATE, folder / KEY)
        if (folder / KEY).exists():
            raise FederationError(
                f"{folder / KEY} is there without its certificate; bring that back, or remove the "
                "key and have the others compare a new fingerprint"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=365 * _YEARS))
            .sign(key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        folder.mkdir(parents=True, exist_ok=True)
        # 0600 from the start, and never over another.
        handle = os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
        replace_file(folder / CERTIFICATE, made.public_bytes(serialization.Encoding.PEM))
        return cls.load(folder / CERTIFICATE, folder / KEY)

    @property
    def fingerprint(self) -> str:
        """What the others know."""
        return fingerprint(self.certificate)

    def sign(self, content: bytes) -> bytes:
        """With the key behind the certificate."""
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

        key = serialization.load_pem_private_key(self.key, password=None)
        if isinstance(key, rsa.RSAPrivateKey):
            pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
            return key.sign(content, pss, hashes.SHA256())
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(content, ec.ECDSA(hashes.SHA256()))
        raise FederationError(f"an identity has an RSA or EC key, not {type(key).__name__}")


def verify(certificate: bytes, content: bytes, signature: bytes) -> None:
    """See that the key behind a certificate signed this.

    Raises:
        RefusalError: it did not.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    key = read(certificate).public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
            key.verify(signature, content, pss, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        else:
            raise RefusalError(f"an identity has an RSA or EC key, not {type(key).__name__}")
    except InvalidSignature as error:
        raise RefusalError("a signature does not belong to its certificate") from error


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate, in hex."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return hashlib.sha256(read(certificate).public_bytes(Encoding.DER)).hexdigest()


def read_roster(path: Path) -> dict[str, str]:
    """Fingerprints of all sites that were agreed on out of band, by name."""
    try:
        content: Any = json.loads(path.read_text())
        return {str(name): str(print_).lower() for name, print_ in content.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise FederationError(
            f"cannot read the roster in {path}: {error}; it holds the fingerprint of every site's "
            "certificate by name, as `canal federation provision` writes it"
        ) from error


def read(certificate: bytes) -> x509.Certificate:
    """A certificate in PEM."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise RefusalError(f"this is no certificate: {error}") from error
