"""Certificates from an authority of their own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True)
class Identity:
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.certificate = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.certificate))

    def issue(self, name: str, *, expired: bool = False) -> Identity:
        """A certificate for this machine, or one of yesterday."""
        not_after = datetime.now(UTC) - timedelta(days=1) if expired else None
        issued = self._authority.issue_cert("127.0.0.1", "localhost", common_name=name, not_after=not_after)
        identity = Identity(self._folder / f"{name}.pem", self._folder / f"{name}-key.pem")
        identity.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        identity.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return identity
