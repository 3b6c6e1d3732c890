"""The cluster's certificates: one CA, a leaf per client and server, service-account keys, kubeconfigs."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=365)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A CA in `folder`, made on first use."""

    folder: Path

    @property
    def pair(self) -> Pair:
        return Pair(self.folder / "ca.crt", self.folder / "ca.key")

    def ensure(self) -> None:
        if self.pair.certificate.exists() and self.pair.key.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("pagefleet-local-ca", [])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(self.pair.key, _pem(key))
        _write(self.pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, common_name: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> Pair:
        """A leaf `name`.crt/.key for `common_name`; a serving certificate too when `hosts` (names, addresses) is given."""
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        if pair.certificate.exists() and pair.key.exists():
            return pair
        ca = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        ca_key = serialization.load_pem_private_key(self.pair.key.read_bytes(), None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise RuntimeError(f"{self.pair.key} is not the key this program wrote")
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(_name(common_name, groups), ca.subject, key.public_key())
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        certificate = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False).sign(ca_key, hashes.SHA256())
        _write(pair.key, _pem(key))
        _write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        return pair

    def service_account_keys(self) -> Pair:
        """The key pair that service-account tokens are signed with (RSA: the API server's default algorithm)."""
        pair = Pair(self.folder / "sa.pub", self.folder / "sa.key")
        if not (pair.certificate.exists() and pair.key.exists()):
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            _write(pair.key, _pem(key))
            public = key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            _write(pair.certificate, public)
        return pair

    def kubeconfig(self, path: Path, server: str, client: Pair) -> Path:
        """A kubeconfig at `path` that holds everything inline."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "pagefleet",
            "clusters": [
                {
                    "name": "pagefleet",
                    "cluster": {"server": server, "certificate-authority-data": _base64(self.pair.certificate)},
                }
            ],
            "users": [
                {
                    "name": "user",
                    "user": {
                        "client-certificate-data": _base64(client.certificate),
                        "client-key-data": _base64(client.key),
                    },
                }
            ],
            "contexts": [{"name": "pagefleet", "context": {"cluster": "pagefleet", "user": "user"}}],
        }
        _write(path, yaml.safe_dump(document, sort_keys=False).encode())
        return path


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


def _name(common_name: str, groups: Sequence[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
