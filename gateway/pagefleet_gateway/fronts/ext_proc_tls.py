"""TLS of the endpoint picker's port: its certificate, and which clients it accepts.

The certificate comes from a folder (a Secret mounted as files) and is read again when a file changes, at the next
handshake. Where the folder has none, the picker signs one of its own at start, as the protocol's reference does: traffic is
then encrypted, and the gateway cannot verify the picker. With a file of authorities a client must show a certificate that
one of them signed. That file is never optional: without it the gateway does not start.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pagefleet_gateway.envoy.tls import CHAIN_FILE, KEY_FILE

log = logging.getLogger(__name__)

SELF_SIGNED_DAYS = 3650  # nobody verifies it, so nothing is gained when it ends while the picker runs


class PickerTLSError(RuntimeError):
    """The picker's certificate or its clients' authorities cannot be used. The message names the file."""


@dataclass(frozen=True)
class Pair:
    """A private key and its certificate chain, both PEM."""

    key: bytes
    chain: bytes


class Certificates:
    """The pair and the authorities in force. A file that becomes unusable changes nothing: the ones before stay in force."""

    def __init__(self, folder: Path | None, authorities: Path | None, hosts: Sequence[str]) -> None:
        """Raises PickerTLSError when a file cannot be used. `hosts` are the names of a self-signed certificate."""
        self._folder, self._authorities, self._hosts = folder, authorities, hosts
        self._own: Pair | None = None
        self._read_at = self._stamps()
        self._configuration = self._read()
        self._failed: object = None  # the stamps of the files that could not be used

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._configuration, self._changed, self._authorities is not None)

    def _changed(self) -> object:
        """Return the new configuration when a file changed since it was read, else None. gRPC asks at each handshake."""
        stamps = self._stamps()
        if stamps in (self._read_at, self._failed):
            return None
        try:
            self._configuration = self._read()
        except PickerTLSError as error:
            self._failed = stamps
            log.warning("the certificate before stays in force: %s", error)
            return None
        self._read_at, self._failed = stamps, None
        return self._configuration

    def _read(self) -> object:
        authorities = None
        if self._authorities is not None:
            authorities = _bytes(self._authorities)
            _check_authorities(authorities, self._authorities)
        pair = self._pair()
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], authorities)

    def _pair(self) -> Pair:
        if self._folder is not None and (self._folder / CHAIN_FILE).exists():
            pair = Pair(_bytes(self._folder / KEY_FILE), _bytes(self._folder / CHAIN_FILE))
            _check(pair, self._folder)
            return pair
        if self._own is None:
            log.info("the endpoint picker has no certificate: it signs one of its own, which gateways cannot verify")
            self._own = self_signed(self._hosts)
        return self._own

    def _stamps(self) -> tuple[object, ...]:
        """Return what tells whether a file changed. The kubelet swaps a link, so the inode changes with the content."""
        files = [self._authorities] if self._authorities is not None else []
        if self._folder is not None:
            files += [self._folder / CHAIN_FILE, self._folder / KEY_FILE]
        return tuple(_stamp(file) for file in files)


def self_signed(hosts: Sequence[str]) -> Pair:
    """Return a new pair for the names `hosts`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # An hour back: a gateway's clock may be behind.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(secret, certificate.public_bytes(serialization.Encoding.PEM))


def _check(pair: Pair, folder: Path) -> None:
    """Raise PickerTLSError unless the key fits the certificate."""
    try:
        certificate = x509.load_pem_x509_certificates(pair.chain)[0]
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError) as error:
        raise PickerTLSError(f"{folder}: {CHAIN_FILE} and {KEY_FILE} must be PEM: {error}") from error
    if key.public_key() != certificate.public_key():
        raise PickerTLSError(f"{folder}: {KEY_FILE} is not the key of {CHAIN_FILE}'s first certificate")


def _check_authorities(text: bytes, file: Path) -> None:
    try:
        x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise PickerTLSError(f"{file} must have PEM certificates of the gateways' authorities: {error}") from error


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PickerTLSError(f"cannot read {file}: {error.strerror}") from error


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)
