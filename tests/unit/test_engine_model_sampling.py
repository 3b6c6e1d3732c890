"""Protects how tokens are drawn: cuts, distribution, seeds; and int8 products against float32."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from pagefleet_engine.core.requests import SamplingParams
from pagefleet_engine.model import linear
from pagefleet_engine.runner.sampling import choose, draw

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def drawn(count: int = 400, **changes: float) -> Counter[int]:
    params = SamplingParams(**{"max_tokens": 1, "temperature": 1.0, "seed": 5, **changes})  # type: ignore[arg-type]
    return Counter(draw(LOGITS, params, position) for position in range(count))


def test_temperature_zero_is_the_largest_logit() -> None:
    assert choose(torch.stack((LOGITS, -LOGITS)), [(SamplingParams(1), 0), (SamplingParams(1), 9)]) == [0, 3]
    assert choose(torch.zeros(0, 4), []) == []


def test_draws_follow_the_distribution() -> None:
    counts = drawn(4000)
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.0001}, {0}),
        ({"min_p": 0.29}, {0, 1, 2}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.8}, {0, 1}),
    ],
)
def test_cuts_keep_what_their_papers_say(changes: dict[str, float], kept: set[int]) -> None:
    assert set(drawn(**changes)) == kept


def test_a_nucleus_wider_than_the_first_guess_is_found_whole() -> None:
    flat = torch.zeros(5000)
    params = SamplingParams(1, temperature=1.0, top_p=0.9, seed=1)
    assert max(draw(flat.clone(), params, position) for position in range(300)) > 1024


def test_seed_and_position_fix_a_draw_and_no_seed_does_not() -> None:
    wide = torch.zeros(10_000)
    seeded = SamplingParams(1, temperature=1.0, seed=-3)
    assert draw(wide, seeded, 7) == draw(wide, seeded, 7)
    assert draw(wide, seeded, 7) != draw(wide, seeded, 8)
    fresh = SamplingParams(1, temperature=1.0)
    assert len({draw(wide, fresh, 7) for _ in range(20)}) > 1


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_int8_is_near_float32_and_a_row_does_not_depend_on_its_batch(rows: int) -> None:
    torch.manual_seed(rows)
    weight, x, bias = torch.randn(96, 64), torch.randn(rows, 64), torch.randn(96)
    product = linear.prepare(weight, bias, "int8")
    exact = x @ weight.T + bias
    assert (product(x) - exact).norm() / exact.norm() < 0.02
    assert torch.equal(product(x)[:1], product(x[:1]))
    assert torch.isfinite(product(torch.zeros(1, 64))).all()


def test_the_int8_heads_largest_logits_are_float32s() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(500, 64), torch.randn(5, 64)
    logits, exact = linear.prepare_head(weight, "int8")(x), x @ weight.T
    assert torch.equal(logits.argmax(dim=1), exact.argmax(dim=1))
    torch.testing.assert_close(logits.topk(10).values, exact.topk(10).values)


def test_an_unknown_quantisation_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of none, int8"):
        linear.prepare(torch.ones(2, 2), None, "fp3")
