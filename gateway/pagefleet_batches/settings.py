"""The batches server's settings, read once from the environment. Decides nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagefleet_contract.addresses import EVERY_IPV4, every_address
from pagefleet_contract.names import GATEWAY, GATEWAY_INTERNAL_PORT, GATEWAY_PORT
from pagefleet_gateway.settings import MIB, SettingError

DAY = 24 * 3600


@dataclass(frozen=True)
class Settings:
    """Ports may be 0: the system then chooses one."""

    folder: Path
    gateway_url: str = f"http://{GATEWAY}"
    gateway_ca: Path | None = None  # the authorities of the gateway's certificate, for https://; None: the system's
    address: str = EVERY_IPV4
    port: int = GATEWAY_PORT
    internal_port: int = GATEWAY_INTERNAL_PORT  # /healthz, /readyz, /metrics
    api_keys_file: Path | None = None  # the gateway's; one that is not there means none, where the gateway demands none
    key_file: Path | None = None  # this server's own key
    max_file_bytes: int = 200 * MIB
    max_lines: int = 50_000
    max_line_bytes: int = 4 * MIB  # the gateway's largest request
    max_client_bytes: int = 2048 * MIB  # of all files of a client
    max_client_batches: int = 100  # of a client that have not ended
    max_in_flight: int = 64  # lines of one model
    retention_seconds: int = 30 * DAY  # of files, and of batches after their end
    drain_seconds: float = 20.0  # how long SIGTERM waits for lines in flight


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Read `PAGEFLEET_BATCHES_*` and `PAGEFLEET_GATEWAY_API_KEYS_FILE`. Raises SettingError for a value out of range."""

    def number(name: str, default: int, low: int, high: int) -> int:
        text = environment.get(f"PAGEFLEET_BATCHES_{name}", "") or str(default)
        if not text.isdecimal() or not low <= int(text) <= high:
            raise SettingError(f"PAGEFLEET_BATCHES_{name}={text!r}: must be a whole number from {low} to {high}")
        return int(text)

    def path(name: str) -> Path | None:
        text = environment.get(name)
        return Path(text) if text else None

    url = environment.get("PAGEFLEET_BATCHES_GATEWAY_URL") or f"http://{GATEWAY}"
    if not url.startswith(("http://", "https://")):
        raise SettingError(f"PAGEFLEET_BATCHES_GATEWAY_URL={url!r}: must begin with http:// or https://")
    folder = path("PAGEFLEET_BATCHES_FOLDER")
    if folder is None:
        raise SettingError("PAGEFLEET_BATCHES_FOLDER: must name the folder of files and batches")
    return Settings(
        folder=folder,
        gateway_url=url,
        gateway_ca=path("PAGEFLEET_BATCHES_GATEWAY_CA_FILE"),
        address=environment.get("PAGEFLEET_BATCHES_ADDRESS") or every_address(),
        port=number("PORT", GATEWAY_PORT, 0, 65535),
        internal_port=number("INTERNAL_PORT", GATEWAY_INTERNAL_PORT, 0, 65535),
        api_keys_file=path("PAGEFLEET_GATEWAY_API_KEYS_FILE"),
        key_file=path("PAGEFLEET_BATCHES_KEY_FILE"),
        max_file_bytes=number("MAX_FILE_MIB", 200, 1, 102400) * MIB,
        max_lines=number("MAX_LINES", 50_000, 1, 1_000_000),
        max_line_bytes=number("MAX_LINE_BYTES", 4 * MIB, 1024, 256 * MIB),
        max_client_bytes=number("MAX_CLIENT_MIB", 2048, 1, 1_048_576) * MIB,
        max_client_batches=number("MAX_CLIENT_BATCHES", 100, 1, 10_000),
        max_in_flight=number("MAX_IN_FLIGHT", 64, 1, 4096),
        retention_seconds=number("RETENTION_DAYS", 30, 1, 3650) * DAY,
        drain_seconds=float(number("DRAIN_SECONDS", 20, 0, 3600)),
    )
