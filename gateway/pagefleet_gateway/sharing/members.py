"""The other gateway pods of this fleet, as the watch reports them. Holds, and sends nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping


class Members:
    """The internal addresses (host:port) of the other gateway pods, by name. `name` is this pod's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses: dict[str, str] = {}
        self._listeners: list[Callable[[str], object]] = []

    def listen(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with the name of each pod that comes, moves or goes."""
        self._listeners.append(listener)

    def put(self, name: str, address: str) -> None:
        if name != self.name and self.addresses.get(name) != address:
            self.addresses[name] = address
            self._changed(name)

    def remove(self, name: str) -> None:
        if self.addresses.pop(name, None) is not None:
            self._changed(name)

    def replace(self, addresses: Mapping[str, str]) -> None:
        for name in [name for name in self.addresses if name not in addresses]:
            self.remove(name)
        for name, address in addresses.items():
            self.put(name, address)

    def includes(self, host: str | None) -> bool:
        """Return whether a gateway pod has this IP address, as a socket shows it: one that listens on `::` shows an IPv4 client as
        `::ffff:10.0.0.2`.
        """
        asking = _ip(host or "")
        return asking is not None and any(
            _ip(address.rpartition(":")[0].strip("[]")) == asking for address in self.addresses.values()
        )

    def _changed(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, as IPv4 where it is one that IPv6 maps; None for what is none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address
