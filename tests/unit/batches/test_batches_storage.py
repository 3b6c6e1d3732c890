"""Protects what a killed process leaves on disk: an answer is there whole or not at all, no line has two, files and batches are
found again, and half an upload is not."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import threading
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_batches.jobs import batch as states
from pagefleet_batches.jobs.batch import Batch, Counts, Usage
from pagefleet_batches.jobs.lines import Checked, Problem
from pagefleet_batches.storage import disk
from pagefleet_batches.storage.batches import Batches
from pagefleet_batches.storage.files import FileInfo, Files
from pagefleet_batches.storage.journal import Journal, Row
from pagefleet_batches.web import errors

BATCH = Batch("batch_1", "one", "team/chat", "/v1/completions", "file_1", "24h", 1, 2, metadata={"a": "é"})


def row(number: int, ok: bool = True) -> Row:
    return Row(number, ok, msgspec.Raw(b'{"custom_id":"%d"}' % number), (1, 0, 2, 0))


def written(journal: Journal) -> tuple[list[bytes], list[bytes]]:
    with contextlib.closing(journal):
        return list(journal.records(True)), list(journal.records(False))


@given(cut=st.integers(0, 400), rows=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=8))
def test_a_journal_that_was_cut_anywhere_has_its_whole_rows_once(
    tmp_path_factory: pytest.TempPathFactory, cut: int, rows: list[tuple[int, bool]]
) -> None:
    file = tmp_path_factory.mktemp("journal") / "answers.jsonl"
    first = Journal(file)
    for number, ok in rows:
        first.append(row(number, ok))
    first.close()
    whole = file.read_bytes()
    file.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    second = Journal(file)
    first_of_each = dict[int, bool]()
    for number, ok in rows:
        first_of_each.setdefault(number, ok)
    expected = list(first_of_each.items())[:kept]
    assert second.totals.answered == {number for number, _ in expected}
    good, bad = sum(ok for _, ok in expected), sum(not ok for _, ok in expected)
    assert second.totals.counts == Counts(good, bad)
    assert second.totals.usage == Usage(kept, 0, 2 * kept, 0)
    for number in range(1, 7):
        assert second.append(row(number)) == (number not in dict(expected))
    second.sync()
    second.close()
    records = [one for part in written(Journal(file)) for one in part]
    assert sorted(records) == sorted(b'{"custom_id":"%d"}\n' % number for number in range(1, 7))


def test_files_are_found_again_and_half_an_upload_is_not(tmp_path: Path) -> None:
    files = Files(tmp_path)
    info = FileInfo("file_1", "one", "a.jsonl", "batch", 0, 5, 50)
    kept = files.write(info, [b"abc", b"def"])
    assert kept is not None and kept.bytes == 6
    half = files.incoming()
    half.write(b"half")
    half.stream.close()
    assert files.write(info, []) is None  # an output file without a row is none
    again = Files(tmp_path)
    assert list(again) == [kept] and again.content("file_1").read_bytes() == b"abcdef"
    assert again.get("one", "file_1") == kept and again.get("two", "file_1") is None
    assert again.bytes_of("one") == 6 and not list((tmp_path / "incoming").iterdir())
    again.remove("file_1")
    assert not list(Files(tmp_path)) and not list((tmp_path / "files").iterdir())


def test_a_client_s_bytes_are_summed_while_a_thread_writes_files(tmp_path: Path) -> None:
    files, infos = Files(tmp_path), [FileInfo(f"file_{one}", "one", "a.jsonl", "batch", 0, 5, 50) for one in range(40)]
    for info in infos[:20]:
        files.write(info, [b"a"])

    def write() -> None:
        for info in infos[20:]:
            files.write(info, [b"a"])

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        assert 20 <= files.bytes_of("one") <= 40
    assert files.bytes_of("one") == 40


def test_a_file_that_is_written_again_replaces_the_one_before(tmp_path: Path) -> None:
    files, info = Files(tmp_path), FileInfo("file_1", "one", "a.jsonl", "batch_output", 0, 5, 50)
    files.write(info, [b"a"])
    files.write(info, [b"bcd"])
    assert [one.bytes for one in files] == [3] and Files(tmp_path).content("file_1").read_bytes() == b"bcd"


def test_batches_are_found_again_as_they_were_stored(tmp_path: Path) -> None:
    batches = Batches(tmp_path)
    failed = states.checked(BATCH, Checked(1, "", (Problem("c", "m", 1, "p"),)), 7)
    batches.put(BATCH)
    assert list(Batches(tmp_path)) == [BATCH]
    batches.put(failed)
    (tmp_path / "batches" / "batch_2").mkdir()  # killed before it wrote its record
    again = Batches(tmp_path)
    assert list(again) == [failed] and again.get("two", "batch_1") is None
    again.remove(failed)
    assert not list(Batches(tmp_path))


def test_one_process_has_the_folder(tmp_path: Path) -> None:
    disk.lock(tmp_path)
    with pytest.raises(disk.FolderInUse, match="two would answer each line twice"):
        disk.lock(tmp_path)


def test_an_upload_that_finds_the_disk_full_is_answered_507_and_leaves_no_file(tmp_path: Path) -> None:
    """/dev/full takes no byte: what is written to it stays in the buffer, which finds no room at its end either."""
    files = Files(tmp_path)
    incoming = files.incoming()
    incoming.stream.close()

    async def upload(_: web.Request) -> web.StreamResponse:
        incoming.write(b"half")
        try:
            files.keep(incoming, FileInfo("file_1", "one", "a.jsonl", "batch", 4, 5, 50))
        finally:
            incoming.drop()
        return web.Response()

    with Path("/dev/full").open("wb") as incoming.stream:
        response = asyncio.run(errors(make_mocked_request("POST", "/v1/files"), upload))
    assert isinstance(response, web.Response) and response.body is not None
    error = json.loads(response.text or "")["error"]
    assert (response.status, error["code"]) == (507, "storage_full") and "disk is full" in error["message"]
    assert not list(files) and not list((tmp_path / "incoming").iterdir())


def test_no_other_error_of_the_disk_is_said_to_be_a_full_one() -> None:
    async def upload(_: web.Request) -> web.StreamResponse:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        asyncio.run(errors(make_mocked_request("POST", "/v1/files"), upload))


def test_a_new_batch_that_finds_the_disk_full_leaves_nothing_and_a_known_one_keeps_its_record(tmp_path: Path) -> None:
    batches = Batches(tmp_path)
    folder = tmp_path / "batches" / BATCH.id
    folder.mkdir()
    (folder / "batch.json.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        batches.put(BATCH)
    assert not folder.exists() and not list(batches)
    batches.put(BATCH)
    (folder / "batch.json.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        batches.put(states.cancelled(BATCH, 9))
    assert [one.name for one in folder.iterdir()] == ["batch.json"]
    assert list(batches) == [BATCH] == list(Batches(tmp_path))
