"""The rooms of the code as a picture: packages as boxes, imports as arrows, drawn from the source itself.

A room is a package, or a module that lies beside packages. Rooms stand in rows: each one above every room that it
imports. An arrow that follows from two others is left out (transitive reduction).
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import grimp

PIECES = {
    "operator": ("pagefleet_operator", 2),
    "gateway": ("pagefleet_gateway", 1),
    "engine": ("pagefleet_engine", 2),
}
HEIGHT, GAP_X, GAP_Y, CHARACTER = 26, 12, 34, 7.0
Arrows = Mapping[str, frozenset[str]]


class CircleError(ValueError):
    """Rooms import each other in a circle."""


def rooms(package: str, depth: int) -> dict[str, frozenset[str]]:
    """Each room of `package`, by its name below the package, with the rooms that it imports.

    Packages more than `depth` levels below `package` belong to the room above them.
    """
    graph = grimp.build_graph(package)
    packages = {module for module in graph.modules if graph.find_children(module)}
    arrows: dict[str, set[str]] = {}
    for module in graph.modules - packages:
        room = _room(module, package, depth, packages)
        imported = (_room(other, package, depth, packages) for other in graph.find_modules_directly_imported_by(module))
        arrows.setdefault(room, set()).update(imported)
    return {room: frozenset(others & arrows.keys() - {room}) for room, others in arrows.items()}


def _room(module: str, package: str, depth: int, packages: set[str]) -> str:
    """A module's package, cut to `depth` levels; the module itself where packages lie beside it."""
    names = module.removeprefix(f"{package}.").split(".")
    above = module.rpartition(".")[0]
    beside = any(one.rpartition(".")[0] == above for one in packages)
    return ".".join(names if beside and len(names) <= depth else names[:-1][:depth])


def floors(arrows: Arrows) -> dict[str, int]:
    """The row of each room, counted from the bottom: one above the highest room that it imports."""
    levels: dict[str, int] = {}

    def level(room: str, above: tuple[str, ...]) -> int:
        if room in above:
            raise CircleError(" -> ".join((*above[above.index(room) :], room)))
        if room not in levels:
            levels[room] = max((level(other, (*above, room)) + 1 for other in arrows.get(room, ())), default=0)
        return levels[room]

    for room in sorted(arrows):
        level(room, ())
    return levels


def reduced(arrows: Arrows) -> dict[str, frozenset[str]]:
    """The arrows without those that follow from two others."""

    def below(room: str) -> set[str]:
        direct = arrows.get(room, frozenset())
        return set(direct).union(*(below(other) for other in direct)) if direct else set()

    return {
        room: frozenset(one for one in others if not any(one in below(other) for other in others if other != one))
        for room, others in arrows.items()
    }


def picture(piece: str) -> str:
    """The rooms of one piece ("operator", "gateway", "engine") as SVG."""
    package, depth = PIECES[piece]
    arrows = rooms(package, depth)
    levels = floors(arrows)
    rows = [sorted(room for room in levels if levels[room] == number) for number in range(max(levels.values()) + 1)]
    lines = reduced(arrows)
    places: dict[str, tuple[float, float]] = {}
    wide = max(sum(_width(room) + GAP_X for room in row) for row in rows) + GAP_X
    for number, row in enumerate(rows):
        row = sorted(row, key=lambda room: _middle(room, lines, places, wide))
        left = (wide - sum(_width(room) + GAP_X for room in row) + GAP_X) / 2
        for room in row:
            places[room] = (left + _width(room) / 2, (len(rows) - 1 - number) * (HEIGHT + GAP_Y) + 40)
            left += _width(room) + GAP_X
    tall = len(rows) * (HEIGHT + GAP_Y) + 20
    drawn = [_arrow(places[room], places[other]) for room in sorted(lines) for other in sorted(lines[room])]
    boxes = [_box(room, *places[room]) for room in sorted(places)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {tall}" font-family="system-ui, sans-serif" '
            'font-size="12" role="img" aria-labelledby="title">',
            f'<title id="title">Rooms of {package}: an arrow leads from a room to one that it imports</title>',
            "<style>rect { fill: #f4f6fb; stroke: #4457a5; stroke-width: 1.2 } text { text-anchor: middle; fill: #1c2333 } "
            "path { fill: none; stroke: #8a96c8; stroke-width: 1 } .t { font-weight: 600; font-size: 14px }</style>",
            '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 10 5 0 10z" style="fill:#4457a5;stroke:none"/></marker></defs>',
            f'<rect x="0" y="0" width="{wide:.0f}" height="{tall}" style="fill:#fff;stroke:none"/>',
            f'<text x="{wide / 2:.0f}" y="20" class="t">{package}</text>',
            *drawn,
            *boxes,
            "</svg>\n",
        ]
    )


def _width(room: str) -> float:
    return CHARACTER * len(room) + 14


def _middle(room: str, lines: Arrows, places: Mapping[str, tuple[float, float]], wide: float) -> float:
    """The mean place of what a room imports, so that arrows are short."""
    below = [places[other][0] for other in lines.get(room, ()) if other in places]
    return sum(below) / len(below) if below else wide / 2


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = (start[0], start[1] + HEIGHT), end
    bend = (y2 - y1) / 2
    return f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}" marker-end="url(#a)"/>'


def _box(room: str, x: float, y: float) -> str:
    wide = _width(room)
    return (
        f'<g><rect x="{x - wide / 2:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:.0f}" y="{y + 17:.0f}">{escape(room)}</text></g>'
    )
