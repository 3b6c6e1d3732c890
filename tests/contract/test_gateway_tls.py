"""TLS at the listener: a certificate from a folder as the kubelet mounts a Secret, swapped under a running gateway.

Protects that a swap drops no connection and no stream, that new connections see the new certificate, HTTP/2 by ALPN,
TLS 1.2 at least, and that a half-written swap changes nothing.
"""

from __future__ import annotations

import asyncio
import datetime
import shutil
import ssl
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.gateway.fleet import STABLE, Fleet, running, until

STREAM = {"model": "smol", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


def certificate(serial: int) -> tuple[bytes, bytes]:
    """Return a self-signed certificate for localhost and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return built.public_bytes(serialization.Encoding.PEM), secret


def mount(folder: Path, version: str, chain: bytes, key: bytes) -> None:
    """Mount files as the kubelet does: in a new folder, to which a link is swapped in one step."""
    data = folder / f"..{version}"
    data.mkdir(parents=True)
    (data / "tls.crt").write_bytes(chain)
    (data / "tls.key").write_bytes(key)
    link = folder / "..fresh"
    link.symlink_to(data.name)
    link.replace(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for old in folder.glob("..v*"):
        if old != data:
            shutil.rmtree(old)


def client(*protocols: str, trusted: bytes | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trusted.decode() if trusted else None)
    if trusted is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


async def serial(fleet: Fleet) -> int:
    _, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.tls_port, ssl=client())
    with closing(writer):
        certificate_bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(certificate_bytes).serial_number


async def test_a_new_certificate_is_served_and_no_connection_is_dropped(tmp_path: Path) -> None:
    first, second = certificate(1001), certificate(1002)
    folder = tmp_path / "tls"
    mount(folder, "v1", *first)
    async with running(tls_folder=folder) as fleet:
        engine = await fleet.engine(STABLE, between=1.0)
        fleet.serve((STABLE, 100))
        url = f"https://localhost:{fleet.gateway.tls_port}/team/chat/v1/chat/completions"
        connector = aiohttp.TCPConnector(ssl=client(trusted=first[0]), limit=1)
        async with aiohttp.ClientSession(connector=connector) as http:
            async with http.post(url, json={"model": "smol", "messages": []}) as response:
                assert response.status == 200
            async with http.post(url, json=STREAM) as response:
                await response.content.readany()
                mount(folder, "v2", *second)

                async def swapped() -> bool:
                    return await serial(fleet) == 1002

                await until(swapped, 5)
                assert (await response.read()).endswith(b"data: [DONE]\n\n")  # the old certificate's stream went on
            # And its connection too: a new one would not be trusted.
            async with http.post(url, json={"model": "smol", "messages": []}) as response:
                assert response.status == 200
        assert len(engine.requests) == 3
        # A key that does not fit its certificate: the pair before it stays in force.
        mount(folder, "v3", certificate(1003)[0], second[1])
        third = certificate(1004)
        assert await serial(fleet) == 1002
        mount(folder, "v4", *third)

        async def mended() -> bool:
            number = await serial(fleet)
            assert number in (1002, 1004)
            return number == 1004

        await until(mended, 5)


async def test_http2_by_alpn_old_protocols_refused_and_plaintext_off(tmp_path: Path) -> None:
    mount(tmp_path / "tls", "v1", *certificate(1))
    async with running(tls_folder=tmp_path / "tls", plaintext=False) as fleet:
        port = fleet.gateway.tls_port
        for offered, chosen in (("h2", "h2"), ("http/1.1", "http/1.1")):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(offered))
            with closing(writer):
                tls = writer.get_extra_info("ssl_object")
                assert tls.selected_alpn_protocol() == chosen and tls.version() == "TLSv1.3"
        old = client()
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=old)
        with pytest.raises(OSError):  # settings ask for port 0, so nothing could have been told where it is
            await asyncio.open_connection("127.0.0.1", fleet.gateway.port)
