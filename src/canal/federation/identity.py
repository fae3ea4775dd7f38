"""Who a site is: a certificate that the others know beforehand, and the key behind it.

FLARE's startup kit has both. What the others know is the certificate's SHA-256 (the *roster*),
compared out of band, by phone say: whoever hands certificates out could make a second one under the
same name, and its fingerprint would be another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canal.errors import FederationError
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
            return cls(certificate.read_bytes(), key.read_bytes())
        except OSError as error:
            raise FederationError(
                f"cannot read {error.filename}: {error.strerror}; it is in the startup kit"
            ) from error

    @classmethod
    def create(cls, folder: Path, name: str) -> Identity:
        """Make one that nobody else vouches for, as a rehearsal needs it; or find it there."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        if (folder / CERTIFICATE).is_file():
            return cls.load(folder / CERTIFICATE, folder / KEY)
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
        (folder / KEY).touch(mode=0o600)
        (folder / KEY).write_bytes(secret)
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
        FederationError: it did not.
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
            raise FederationError(f"an identity has an RSA or EC key, not {type(key).__name__}")
    except InvalidSignature as error:
        raise FederationError("a signature does not belong to its certificate") from error


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
        raise FederationError(f"this is no certificate: {error}") from error
