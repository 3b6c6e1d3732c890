"""Protects that a log's reader who stalls stalls nobody: whole lines in order, a bounded queue, drops that are counted.
The pipes are real."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator

import pytest

from pagefleet_gateway.log_writer import MAX_BYTES, LogWriter, WriterHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def read_until(reader: int, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += os.read(reader, 1 << 20)
    return data


def test_a_stalled_reader_stalls_no_writer_and_gets_whole_lines_once_it_reads(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    dropped: list[int] = []
    writer = LogWriter(descriptor, lambda: dropped.append(1))
    line = b"x" * 1000
    count = 2 * MAX_BYTES // 1000
    before = time.thread_time()
    for number in range(count):
        writer.write(b"%d %s\n" % (number, line))
    assert time.thread_time() - before < 5
    assert 0.4 * count < len(dropped) < 0.6 * count
    held = count - len(dropped)
    lines = read_until(reader, b"%d %s\n" % (held - 1, line)).splitlines()
    assert [int(one.split()[0]) for one in lines] == list(range(held))
    writer.write(b"later\n")
    assert read_until(reader, b"later\n") == b"later\n"
    writer.close(10)


def test_the_end_writes_what_is_queued_and_waits_for_no_stalled_reader(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LogWriter(descriptor)
    for number in range(1000):
        writer.write(b"%d\n" % number)
    writer.close(10)
    assert read_until(reader, b"999\n").count(b"\n") == 1000
    stalled = LogWriter(descriptor)
    stalled.write(b"y" * (1 << 20) + b"\n")
    before = time.monotonic()
    stalled.close(0.1)
    assert time.monotonic() - before < 5
    # Its thread must be over before the pipe's descriptor can become another test's.
    os.close(reader)
    stalled.close(10)
    assert not stalled.alive


def test_a_reader_that_is_gone_ends_nothing(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    os.close(reader)
    writer = LogWriter(descriptor)
    writer.write(b"nobody\n")
    writer.close(10)


def test_records_of_logging_go_the_same_way(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = LogWriter(descriptor)
    handler = WriterHandler(writer)
    handler.setFormatter(logging.Formatter('{"message": "%(message)s"}'))
    handler.handle(logging.LogRecord("a", logging.INFO, "", 0, "hello", None, None))
    writer.close(10)
    assert json.loads(read_until(reader, b"\n")) == {"message": "hello"}
