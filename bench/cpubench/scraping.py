"""Reads an engine's `/metrics` again and again while a load runs, for `pagefleet_simulator.fleet.fit.scrapes`."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

SCRAPE_SECONDS = 0.5


@contextmanager
def scraping(address: str) -> Iterator[list[str]]:
    """Pages of `address`, oldest first: one of the beginning, one each SCRAPE_SECONDS by a thread, and one of the end of the block."""
    pages, ended = [_page(address)], threading.Event()

    def scrape() -> None:
        while not ended.wait(SCRAPE_SECONDS):
            pages.append(_page(address))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield pages
    finally:
        ended.set()
        thread.join()
    pages.append(_page(address))


def _page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as reply:
        return str(reply.read().decode())
