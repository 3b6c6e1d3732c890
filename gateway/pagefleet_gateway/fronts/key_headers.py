"""The headers by which an engine knows who asks: its own key, and the client's name. The same for every front. Pure."""

from __future__ import annotations

from pagefleet_contract.headers import CLIENT_HEADER
from pagefleet_gateway.limits.api_keys import AUTHORIZATION, X_API_KEY
from pagefleet_gateway.picking.pick import Pick


def key_headers(pick: Pick) -> list[tuple[str, str]]:
    """Return the headers to set: the engine's own key, which replaces the client's, and the name of the client's key. The latter
    separates clients at an engine that knows only its own key."""
    own = [(AUTHORIZATION, f"Bearer {pick.engine_key}")] if pick.engine_key else []
    return [*own, (CLIENT_HEADER, pick.api_key)] if pick.api_key else own


def client_key_headers(pick: Pick) -> list[str]:
    """Return the headers to remove: every one that can hold the client's key and that the engine's own does not replace.
    Without keys of the gateway these headers are between the client and the engine."""
    if pick.engine_key:
        return [X_API_KEY]
    return [AUTHORIZATION, X_API_KEY] if pick.api_key else []
