"""The terminal. Text of a cluster, of an engine or of a file is shown on it and never obeyed: the last words of a tenant's engine are part
of a message, and could clear the screen, or set its title, of whoever looks at the service. kubectl does the same."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# As terminals show what is typed: ^[ for escape, and for the controls of eight bits the two that mean the same.
_SHOWN = {code: f"^{chr(code ^ 0x40)}" for code in (*range(0x20), 0x7F) if chr(code) not in "\n\t"}
_SHOWN |= {code: f"^[{chr(code - 0x40)}" for code in range(0x80, 0xA0)}


def visible(text: str) -> str:
    """The text with its control characters, but for tabs and line ends, in a form that can be seen."""
    return text.translate(_SHOWN)


class Screen(Console):
    """A rich console that shows the control characters of what it prints. Its own colours stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
