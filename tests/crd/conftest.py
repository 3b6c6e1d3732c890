"""Kubernetes' own CRD server, current, with our CRD. It is built once, while other parts of the tests run, and needs no root.

When it cannot be built (no Debian archive, no network, a new package that does not build), these tests are skipped with the reason: it
comes from another project's newest packages. With PAGEFLEET_CRD_SERVER=required they fail then, as the night has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.crd_server import Requests, running, shipped

from pagefleet_local.assets.crdserver import CrdServer, crd_server
from pagefleet_local.assets.debian import AssetError


@pytest.fixture(scope="session")
def program() -> CrdServer:
    try:
        return crd_server()
    except AssetError as error:
        reason = f"no current CRD server: {' '.join(str(error).split())}"
    if os.environ.get("PAGEFLEET_CRD_SERVER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def bare(program: CrdServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Requests]:
    """Yield a server without any CRD."""
    with running(program, tmp_path_factory.mktemp("crd-server")) as requests:
        yield requests


@pytest.fixture(scope="module")
def server(bare: Requests) -> Requests:
    """Return a server with our CRD."""
    bare.install(shipped()).done()
    return bare
