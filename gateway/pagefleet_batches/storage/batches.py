"""The batches of clients: each a folder with its record and the journal of its answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pagefleet_batches.jobs.batch import Batch
from pagefleet_batches.storage import disk
from pagefleet_batches.storage.journal import Journal


class Batches:
    """All batches, by id. A record on disk is the batch at its last change of state; the journal knows the rest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "batches"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, Batch] = {}
        for path in self._folder.iterdir():
            record = path / "batch.json"
            if record.exists():
                batch = msgspec.json.decode(record.read_bytes(), type=Batch)
                self._known[batch.id] = batch
            else:  # a process that was killed before it wrote the record has told nobody the id
                shutil.rmtree(path)

    def __iter__(self) -> Iterator[Batch]:
        return iter(sorted(self._known.values(), key=lambda batch: (batch.created_at, batch.id)))

    def get(self, client: str, name: str) -> Batch | None:
        """Return a client's batch; None where there is none of this client."""
        batch = self._known.get(name)
        return batch if batch is not None and batch.client == client else None

    def put(self, batch: Batch) -> Batch:
        """Store a batch after a change of its state."""
        folder = self._folder / batch.id
        folder.mkdir(exist_ok=True)
        try:
            disk.write(folder / "batch.json", msgspec.json.encode(batch))
        except OSError:
            if batch.id not in self._known:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        self._known[batch.id] = batch
        return batch

    def journal(self, batch: Batch) -> Journal:
        return Journal(self._folder / batch.id / "answers.jsonl")

    def drop_journal(self, batch: Batch) -> None:
        """Remove the answers of a batch that ended: its files have them."""
        (self._folder / batch.id / "answers.jsonl").unlink(missing_ok=True)

    def remove(self, batch: Batch) -> None:
        del self._known[batch.id]
        (self._folder / batch.id / "batch.json").unlink()
        shutil.rmtree(self._folder / batch.id, ignore_errors=True)
