"""How many threads Envoy gets without being told: the container's CPU limit decides, not the size of its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagefleet_gateway.envoy.processors import cpu_limit, default_workers, workers
from pagefleet_gateway.settings import settings_from


@pytest.mark.parametrize(
    ("processors", "limit", "threads"),
    [
        (1, None, 1),
        (2, None, 2),
        (96, None, 4),  # a container without a limit on a large node
        (96, 2.0, 2),
        (96, 1.5, 2),
        (96, 0.25, 1),
        (96, 64.0, 4),
        (1, 8.0, 1),  # pinned to one processor
    ],
)
def test_one_thread_for_each_processor_that_may_be_used(processors: int, limit: float | None, threads: int) -> None:
    assert workers(processors, limit) == threads


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.25),
        ({"cpu.max": "", "cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu.max": "1 0\n"}, None),
    ],
)
def test_the_limit_is_the_cgroups_of_either_version(tmp_path: Path, files: dict[str, str], limit: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_limit(tmp_path) == limit


def test_a_given_number_goes_before_it() -> None:
    assert settings_from({"PAGEFLEET_GATEWAY_WORKERS": "7"}).workers == 7
    assert settings_from({}).workers == default_workers()
