"""All generated pages by file name. Pure: the same sources give the same text."""

from __future__ import annotations

from pagefleet_reference import cli, crd, http, metrics

MADE = "<!-- Made by `python -m pagefleet_reference`; edit the source it names. -->\n\n"


def pages() -> dict[str, str]:
    """File name in docs/reference -> text."""
    made = {"crd.md": crd.page(), "metrics.md": metrics.page(), "cli.md": cli.page(), "http.md": http.page()}
    return {name: MADE + text.rstrip() + "\n" for name, text in made.items()}
