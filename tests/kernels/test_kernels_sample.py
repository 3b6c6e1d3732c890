"""The sampling kernel picks the reference's tokens; both sample the filtered softmax, and depend on seed, position and
token alone.
"""

from __future__ import annotations

import math

import pytest
import torch

from pagefleet_kernels.sample import LANES, gumbel, sample_reference, sample_triton


def parameters(rows: int, **given: float) -> tuple[torch.Tensor, ...]:
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7}
    heat, k, p, least, seed = (torch.full((rows,), float(value)) for value in {**defaults, **given}.values())
    return heat, k.int(), p, least, seed.long(), torch.arange(rows)


def allowed(probabilities: torch.Tensor, k: int, p: float, least: float) -> set[int]:
    """By definition: what the filters leave of one row."""
    order = probabilities.argsort(descending=True).tolist()
    order = order[:k] if k else order
    mass, tokens = 0.0, []
    whole = float(probabilities[order].sum())
    for token in order:
        if mass >= p * whole:
            break
        tokens.append(token)
        mass += float(probabilities[token])
    return {token for token in tokens if probabilities[token] >= least * probabilities.max()}


@pytest.mark.parametrize("size", [11, 2500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_picks_the_references_tokens(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    rows = 10
    logits = (torch.randn(2 * rows, 2 * size) * 4)[::2, ::2].to(dtype)
    logits[3, : size // 2] = -torch.inf  # a grammar's mask
    heat = torch.tensor([0.0, 0.3, 1.0, 1.7, 1.0, 0.8, 5.0, 0.0, 1.0, 1.0])
    k = torch.tensor([5, 0, 1, 4, 0, 40, 10**6, 0, 0, 3], dtype=torch.int32)
    p = torch.tensor([0.5, 1.0, 1.0, 1.0, 0.9, 0.7, 0.99, 1.0, 1e-6, 0.6])
    least = torch.tensor([0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.01, 0.9, 0.0, 1.0])
    seeds = torch.randint(-(2**62), 2**62, (rows,))
    arguments = (logits, heat, k, p, least, seeds, torch.arange(rows) * 1000)
    answered = sample_triton(*arguments)
    assert torch.equal(answered, sample_reference(*arguments))
    for greedy in (0, 7, 2, 8):  # temperature 0, top-1, nearly no mass
        assert logits[greedy, answered[greedy]] == logits[greedy].max()


@pytest.mark.parametrize("crowded", [False, True])
def test_a_long_rows_threshold_is_the_references(crowded: bool) -> None:
    """The four largest logits of each lane decide; where they are not all that stay (seven stay in one lane), the row does."""
    torch.manual_seed(4)
    rows, size = 6, 6 * LANES + 5
    logits = torch.randn(rows, size)
    logits[:, (slice(None, None, LANES) if crowded else slice(7))] += 12
    heat, least = torch.ones(rows), torch.zeros(rows)
    k = torch.tensor([7, 6, 50, 0, 0, 7], dtype=torch.int32)
    p = torch.tensor([1.0, 1.0, 1.0, 0.9, 0.999, 0.95])
    given = (heat, k, p, least, torch.arange(rows), torch.arange(rows))
    assert torch.equal(sample_triton(logits, *given), sample_reference(logits, *given))


@pytest.mark.parametrize(
    ("k", "p", "least"), [(0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.6, 0.0), (5, 0.8, 0.0), (0, 1.0, 0.3), (4, 0.9, 0.2)]
)
def test_the_distribution_is_the_filtered_softmax(k: int, p: float, least: float) -> None:
    """Chi-squared over 8,000 draws, 1 in 100,000 (of the reference; 8 of them are the kernel's own)."""
    torch.manual_seed(2)
    size, draws = 8, 8000
    row = torch.randn(size) * 1.5
    probabilities = (row / 0.8).softmax(-1)
    possible = allowed(probabilities, k, p, least)
    given = parameters(draws, temperature=0.8, top_k=k, top_p=p, min_p=least)
    drawn = sample_reference(row.expand(draws, size), *given)
    counts = torch.bincount(drawn.long(), minlength=size).float()
    assert {token for token in range(size) if counts[token]} == possible
    expected = torch.tensor([float(probabilities[t]) if t in possible else 0.0 for t in range(size)])
    expected = expected / expected.sum() * draws
    chi = sum(float((counts[t] - expected[t]) ** 2 / expected[t]) for t in possible)
    freedom = max(1, len(possible) - 1)
    assert chi < freedom + 4.3 * math.sqrt(2 * freedom) + 12  # above the quantile for 1 to 7 degrees
    some = sample_triton(row.expand(8, size), *(parameter[:8] for parameter in given))
    assert torch.equal(some, drawn[:8])


def test_ties_are_kept_together_and_greedy_takes_the_first() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])
    assert sample_triton(logits, *parameters(1, temperature=0)).item() == 1
    for filters in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}):
        given = parameters(60, **filters)
        drawn = sample_reference(logits.expand(60, 5), *given)
        assert set(drawn.tolist()) == {1, 2, 3}
        some = sample_triton(logits.expand(6, 5), *(parameter[:6] for parameter in given))
        assert torch.equal(some, drawn[:6])


def test_a_request_samples_the_same_alone_and_in_a_batch() -> None:
    torch.manual_seed(3)
    logits = torch.randn(6, 50)
    given = parameters(6, top_k=20)
    together = sample_triton(logits, *given)
    alone = [sample_triton(logits[i : i + 1], *(one[i : i + 1] for one in given)) for i in (5, 0, 3)]
    assert torch.cat(alone).tolist() == together[[5, 0, 3]].tolist()


def test_the_noise_is_gumbels_and_differs_by_seed_and_position() -> None:
    noise = gumbel(torch.tensor([1, 1, 2, 1 << 32]), torch.tensor([0, 1, 0, 0]), 20_000)
    assert noise.isfinite().all()
    assert (noise.mean(1) - 0.5772).abs().max() < 0.04 and (noise.var(1) - math.pi**2 / 6).abs().max() < 0.1
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.03
