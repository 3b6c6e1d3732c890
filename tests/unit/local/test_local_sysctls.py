"""Protects the machine's kernel settings: a fleet that is taken down leaves them as it found them, also one whose start was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagefleet_local.base.paths import Layout
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.node import sysctls

BEFORE = {
    "net/ipv4/ip_forward": "0\n",
    "net/ipv4/conf/all/route_localnet": "0\n",
    "kernel/panic": "0\n",
    "vm/panic_on_oom": "0\n",
}
NODE = {**BEFORE, "net/ipv4/ip_forward": "1\n", "net/ipv4/conf/all/route_localnet": "1\n", "kernel/panic": "10\n"}


def write(kernel: Path, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        (kernel / name).parent.mkdir(parents=True, exist_ok=True)
        (kernel / name).write_text(value)


def read(kernel: Path) -> dict[str, str]:
    return {name: (kernel / name).read_text() for name in BEFORE}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "state").mkdir()
    return Layout(state=tmp_path / "state", run=tmp_path / "run", bridge="pagefleet-none", has_node=False)


def test_settings_are_put_back(tmp_path: Path, layout: Layout) -> None:
    kernel = tmp_path / "sys"
    write(kernel, BEFORE)
    sysctls.keep(layout, kernel)
    write(kernel, NODE)
    sysctls.keep(layout, kernel)  # a start that is repeated finds what the first one has made
    sysctls.put_back(layout, kernel)
    assert read(kernel) == BEFORE


def test_nothing_is_changed_that_was_not_kept(tmp_path: Path, layout: Layout) -> None:
    kernel = tmp_path / "sys"
    write(kernel, NODE)
    sysctls.put_back(layout, kernel)
    assert read(kernel) == NODE


def test_what_takes_a_cluster_down_puts_settings_back(layout: Layout) -> None:
    """The real kernel's settings, as they are: none is changed, and the file goes with the state."""
    for folder in (layout.logs, layout.pki):
        folder.mkdir()
    sysctls.keep(layout)
    cleanup.down(layout)
    assert not layout.state.exists()
