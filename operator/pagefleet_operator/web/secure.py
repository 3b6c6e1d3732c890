"""TLS for the operator's port. The mounted files are read again when they change, because certificates are renewed in
place, and a Secret may be made when the operator runs already."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
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


async def serve(
    folder: Path, port: int, listen: Callable[[Secure], Awaitable[None]], every: float = EVERY_SECONDS
) -> None:
    """`listen` as soon as `folder` has a certificate that can be read, and load renewed ones, for ever."""
    secure = _mounted(folder, port)
    while secure is None:
        await asyncio.sleep(every)
        secure = _mounted(folder, port)
    await listen(secure)
    await secure.keep(every)


def _mounted(folder: Path, port: int) -> Secure | None:
    """None while there is no certificate. One that cannot be read must not end the operator, which decides without it."""
    if not (folder / "tls.crt").exists():
        return None
    try:
        return Secure(folder, port)
    except (OSError, ssl.SSLError) as error:
        log.warning("there is no HTTPS: the certificate cannot be read: %s", error)
        return None
