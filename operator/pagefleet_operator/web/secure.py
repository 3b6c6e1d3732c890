"""TLS for the operator's port. The mounted files are read again when they change, because certificates are renewed in
place."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

EVERY_SECONDS = 30.0
log = logging.getLogger(__name__)


class Secure:
    """`folder` holds tls.crt and tls.key, as a Secret of type kubernetes.io/tls is mounted."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port, self._certificate, self._key = port, folder / "tls.crt", folder / "tls.key"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._read = b""
        self.renew()

    def renew(self) -> bool:
        """Load the files if they have changed; new connections use them. Raises OSError or ssl.SSLError."""
        present = self._certificate.read_bytes() + self._key.read_bytes()
        if present == self._read:
            return False
        self.context.load_cert_chain(self._certificate, self._key)
        self._read = present
        return True

    async def keep(self, every: float = EVERY_SECONDS) -> None:
        """Load renewed files, for ever. A file that is half written is tried again later."""
        while True:
            await asyncio.sleep(every)
            try:
                if self.renew():
                    log.info("the certificate was renewed")
            except (OSError, ssl.SSLError) as error:
                log.warning("the certificate cannot be read: %s", error)
