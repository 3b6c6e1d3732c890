"""The bounds of the endpoint picker's port, and the refusal of each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_gateway.picking.routing import Refusal

MIB = 1024 * 1024
BUSY_RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True)
class Limits:
    """`buffered_bytes` bounds the requests' bodies that all exchanges hold together until their decision."""

    request_bytes: int
    exchanges: int = 4096
    buffered_bytes: int = 512 * MIB


@dataclass
class Buffers:
    """The bytes of requests' bodies that are held now."""

    limit: int
    held: int = 0

    def take(self, count: int) -> bool:
        """Count bytes as held; False when they are more than the limit leaves."""
        if self.held + count > self.limit:
            return False
        self.held += count
        return True

    def release(self, count: int) -> None:
        self.held -= count


def too_large(limit: int) -> Refusal:
    message = f"the request's body is larger than {limit / MIB:g} MiB, the limit of this gateway"
    return Refusal(413, "invalid_request_error", "request_too_large", message)


def _busy(code: str, message: str) -> Refusal:
    text = f"{message}; retry in {BUSY_RETRY_AFTER_SECONDS} s"
    return Refusal(503, "server_error", code, text, retry_after=BUSY_RETRY_AFTER_SECONDS)


def buffers_full(limit: int) -> Refusal:
    message = f"the requests that this endpoint picker holds have {limit / MIB:g} MiB of bodies, which is its limit"
    return _busy("picker_buffers_full", message)


def too_many_exchanges(limit: int) -> Refusal:
    return _busy("picker_busy", f"this endpoint picker has {limit} requests open, which is its limit")
