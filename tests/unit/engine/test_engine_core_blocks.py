"""Protects the page pool: who owns a page, what a released page still knows, what is reused first, double frees."""

from __future__ import annotations

import pytest

from pagefleet_engine.core.blocks import OutOfPages, PageError, PagePool, page_hashes


def test_hashes_are_chained_and_cover_full_pages_only() -> None:
    one, other = page_hashes([1, 2, 3, 4, 5], 2), page_hashes([9, 2, 3, 4], 2)
    assert len(one) == 2
    assert one[0] != other[0]
    assert one[1] != other[1]  # the same tokens after another beginning are another prefix
    assert page_hashes([1, 2, 3, 4, 5], 2, parent=one[0], start=2) == one[1:]


def test_an_allocation_that_does_not_fit_changes_nothing() -> None:
    pool = PagePool(3)
    held = pool.allocate(2)
    with pytest.raises(OutOfPages, match="2 pages requested, 1 available of 3"):
        pool.allocate(2)
    assert (pool.available, len(set(held))) == (1, 2)
    pool.check()


def test_a_double_free_is_refused() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(PageError, match="released twice"):
        pool.release(pages)


def test_a_released_known_page_is_found_again_until_it_is_reused() -> None:
    pool = PagePool(2)
    hashes = page_hashes([1, 2], 2)
    pages = pool.allocate(1)
    pool.register(pages[0], hashes[0])
    pool.release(pages)
    assert (pool.blank, pool.cached) == (1, 1)
    assert pool.find(hashes) == pages
    pool.hold(pages)
    assert pool.cached == 0
    pool.release(pages)
    pool.allocate(2)
    assert pool.find(hashes) == []
    pool.check()


def test_the_tail_of_the_least_recently_used_prefix_is_reused_first() -> None:
    pool = PagePool(4)
    old, new = page_hashes([1, 2], 1), page_hashes([3, 4], 1)
    for hashes in (old, new):
        pages = pool.allocate(2)
        for page, digest in zip(pages, hashes, strict=True):
            pool.register(page, digest)
        pool.release(pages)
    pool.allocate(1)
    assert (len(pool.find(old)), len(pool.find(new))) == (1, 2)
    pool.allocate(1)
    assert (len(pool.find(old)), len(pool.find(new))) == (0, 2)


def test_a_shared_page_is_free_when_its_last_owner_has_gone() -> None:
    pool = PagePool(1)
    pages = pool.allocate(1)
    pool.register(pages[0], b"x")
    pool.hold(pages)
    pool.release(pages)
    assert pool.available == 0
    pool.release(pages)
    assert pool.available == 1


def test_what_is_not_certain_is_neither_held_nor_registered() -> None:
    pool = PagePool(1)
    with pytest.raises(PageError, match="blank"):
        pool.hold([0])
    with pytest.raises(PageError, match="not held"):
        pool.register(0, b"x")
    with pytest.raises(PageError, match="at least one page"):
        PagePool(0)
