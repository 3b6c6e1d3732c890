"""Protects the tables of launches: a GPU's own goes before the defaults, and tuning keeps what is clearly faster."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagefleet_kernels import tune
from pagefleet_kernels.launch import plan, tables
from pagefleet_kernels.launch.tables import DEFAULT, SMALL, Attention, Gemm


def test_a_table_is_read_as_it_was_written() -> None:
    changed = replace(DEFAULT, fp8={**DEFAULT.fp8, 16: Gemm(16, 32, 64, 8, 2, 1)})
    assert tables.loaded(tables.dumped(changed)) == changed
    partly = tables.loaded('{"decode": {"128": {"rows": 16, "tile": 32, "warps": 8, "stages": 3, "resident": 1}}}')
    assert partly.decode == {**DEFAULT.decode, 128: Attention(16, 32, 8, 3, 1)}
    assert partly.fp8 == DEFAULT.fp8


@pytest.mark.parametrize(
    "text", ["", "[]", '{"decode": {"128": {"rows": 16}}}', '{"decode": {"x": {}}}', '{"speed": {}}']
)
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"table of launches|invalid literal"):
        tables.loaded(text)


def test_a_gpus_own_table_goes_before_the_defaults(tmp_path: Path) -> None:
    changed = replace(DEFAULT, weight_only={**DEFAULT.weight_only, 16: Gemm(16, 32, 64, 8, 2, 1)})
    (tmp_path / tables.file_name("NVIDIA H200")).write_text(tables.dumped(changed))
    assert tables.file_name("NVIDIA H200") == "nvidia-h200.json"
    assert tables._of("NVIDIA H200", str(tmp_path), (9, 0)) == changed
    assert tables._of("NVIDIA Other", str(tmp_path), (9, 0)) == DEFAULT
    assert tables.tables(torch.device("cpu")) is DEFAULT


def test_a_gpu_with_less_shared_memory_has_other_defaults(tmp_path: Path) -> None:
    for capability in ((8, 0), (8, 6), (8, 9), (12, 0)):
        assert tables._of("NVIDIA L4", str(tmp_path), capability) == SMALL
    (tmp_path / tables.file_name("NVIDIA L4")).write_text('{"fp8": {}}')
    assert tables._of("NVIDIA L4", str(tmp_path), (8, 9)).long == SMALL.long
    for part in ("decode", "short", "long", "weight_only", "fp8"):
        assert getattr(SMALL, part).keys() == getattr(DEFAULT, part).keys()


def test_every_shipped_table_can_be_read() -> None:
    for path in tables.SHIPPED.glob("*.json"):
        assert set(tables.loaded(path.read_text()).decode) == set(DEFAULT.decode)


def test_tuning_keeps_the_default_unless_something_is_clearly_faster() -> None:
    entry = DEFAULT.fp8[16]
    choices = [replace(entry, depth=64), replace(entry, depth=512), replace(entry, columns=32)]
    taken = {entry: 1.0, choices[0]: 0.98, choices[1]: None, choices[2]: 0.99}
    assert tune.best(entry, iter(choices), taken.__getitem__) == entry
    assert tune.best(entry, iter(choices), {**taken, choices[0]: 0.9}.__getitem__) == choices[0]
    assert tune.best(entry, iter(choices), {**taken, entry: None}.__getitem__) == choices[0]


def test_a_table_in_force_plans_launches_until_it_is_not() -> None:
    other = Attention(16, 32, 8, 3, 1)
    with tune.in_force(replace(DEFAULT, decode={**DEFAULT.decode, 128: other})):
        assert plan.attention_plan(1, 4, 128) == other
    assert plan.attention_plan(1, 4, 128) == DEFAULT.decode[128]


def test_without_a_gpu_nothing_is_tuned() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ended = subprocess.run(
        [sys.executable, "-m", "pagefleet_kernels.tune"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "nothing was tuned" in ended.stderr
