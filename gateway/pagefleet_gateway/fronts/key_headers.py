"""The headers of keys on a request's way to an engine: the same for every front. Pure; decides nothing."""

from __future__ import annotations

from pagefleet_gateway.limits.api_keys import AUTHORIZATION, X_API_KEY
from pagefleet_gateway.picking.picker import Pick


def engine_key_headers(pick: Pick) -> list[tuple[str, str]]:
    """Return the header with the engine's own key, which replaces the client's; none where the engine demands no key."""
    return [(AUTHORIZATION, f"Bearer {pick.engine_key}")] if pick.engine_key else []


def client_key_headers(pick: Pick) -> list[str]:
    """Return the headers to remove: every one that can hold the client's key and that the engine's own does not replace.
    Without keys of the gateway these headers are between the client and the engine."""
    if pick.engine_key:
        return [X_API_KEY]
    return [AUTHORIZATION, X_API_KEY] if pick.api_key else []
