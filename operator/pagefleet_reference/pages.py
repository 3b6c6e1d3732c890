"""All generated files of docs/reference by name. Pure: the same sources give the same text."""

from __future__ import annotations

from pagefleet_reference import cli, crd, http, metrics, rooms

MADE = "<!-- Made by `python -m pagefleet_reference`; edit the source it names. -->\n\n"


def pages() -> dict[str, str]:
    """File name in docs/reference -> text."""
    made = {"crd.md": crd.page(), "metrics.md": metrics.page(), "cli.md": cli.page(), "http.md": http.page()}
    pictures = {f"rooms-{piece}.svg": rooms.picture(piece) for piece in rooms.PIECES}
    return {name: MADE + text.rstrip() + "\n" for name, text in made.items()} | pictures
