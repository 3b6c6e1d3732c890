"""TLS at the listener: Envoy reads a certificate from a folder, and again when it changes. Pure.

The folder is a Secret of type kubernetes.io/tls mounted as files (`tls.crt`, `tls.key`). The kubelet swaps a symbolic
link in it when the Secret changes. Envoy watches the folder for that. It uses the new pair for new connections when both
parts fit, and the old one for connections that are open.
"""

from __future__ import annotations

from pathlib import Path

from pagefleet_gateway.envoy.clusters import TYPE

CERTIFICATE = "server"
CHAIN_FILE, KEY_FILE = "tls.crt", "tls.key"
PROTOCOLS = ("h2", "http/1.1")  # ALPN, in our order of preference


def certificate_discovery(folder: Path) -> dict[str, object]:
    """Build the file that names the certificate's files to Envoy."""
    return {
        "resources": [
            {
                "@type": TYPE + "extensions.transport_sockets.tls.v3.Secret",
                "name": CERTIFICATE,
                "tls_certificate": {
                    "certificate_chain": {"filename": str(folder / CHAIN_FILE)},
                    "private_key": {"filename": str(folder / KEY_FILE)},
                    "watched_directory": {"path": str(folder)},
                },
            }
        ]
    }


def transport_socket(file: Path) -> dict[str, object]:
    """Build the listener's transport socket. `file` holds `certificate_discovery`."""
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": TYPE + "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
                "alpn_protocols": list(PROTOCOLS),
                "tls_certificate_sds_secret_configs": [
                    {
                        "name": CERTIFICATE,
                        "sds_config": {"resource_api_version": "V3", "path_config_source": {"path": str(file)}},
                    }
                ],
            },
        },
    }
