"""`pagefleet-fetch --cache FOLDER --into FOLDER NAME=URI...`: fetches models and links each as NAME. Exits 78 where the spec has to
change, 75 where the next start may bring more, with the field and the cause in the termination message."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pagefleet_contract.model_fetch import EXIT_AGAIN
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_contract.quantity import amount
from pagefleet_fetch import archives, bucket, hub, progress, registry, transfer
from pagefleet_fetch.cache import Cache
from pagefleet_fetch.files import SOURCE, Fault, Interrupted, Model, Source

CONFIGURATION_EXIT = 78
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0  # seconds, as between two starts of a container
log = logging.getLogger("pagefleet-fetch")


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="pagefleet-fetch", description="Fetch models before an engine starts", allow_abbrev=False
    )
    root.add_argument("--cache", type=Path, required=True, metavar="FOLDER", help="where fetched models are kept")
    root.add_argument(
        "--cache-size", type=_bytes, metavar="BYTES", help="what all models in the cache may have together"
    )
    root.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="where each is linked by its name")
    root.add_argument("--port", type=int, default=ENGINE_PORT, help="of the page that tells how far it is")
    root.add_argument(
        "--pull-secrets", type=Path, metavar="FOLDER", help="credentials of registries, as dockerconfigjson"
    )
    root.add_argument(
        "--keep-trying",
        action="store_true",
        help="wait here for a source that does not answer, and do not end with status 75",
    )
    root.add_argument("models", nargs="+", type=_pair, metavar="NAME=URI")
    return root


def _bytes(text: str) -> int:
    """Bytes as a Kubernetes quantity. Raises ValueError."""
    return int(amount(text))


def _pair(text: str) -> tuple[str, str]:
    """NAME=URI. A name can hold no /, so the first :// is that of the URI; it may hold =, as a prefix such as date=2026-01-31 does."""
    start = text.rfind("=", 0, max(0, text.find("://")))
    name, uri = text[: max(0, start)], text[start + 1 :]
    if (
        not name
        or "/" in name
        or name.startswith(".")
        or not uri.startswith((hub.SCHEME, registry.SCHEME, *bucket.SCHEMES))
    ):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be NAME=hf://org/name[@revision] or NAME=s3://bucket[/prefix], gs://, az:// or oci://"
        )
    return name, uri


def run() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    arguments = parser().parse_args()
    # A program that is process 1 of its container ignores SIGTERM without a handler, and its pod would end only when its grace period does.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_AGAIN))
    meter = progress.Meter()
    progress.serve(meter, arguments.port)
    for name in [name for name, value in os.environ.items() if not value.strip()]:
        del os.environ[name]  # empty is none, as for AWS' own tools
    try:
        # The signal's handler runs in the main thread, which must not wait inside of a library that is no Python.
        with ThreadPoolExecutor(1) as worker:
            worker.submit(persist, lambda: _link_all(arguments, meter), keep_trying=arguments.keep_trying).result()
    except Fault as fault:
        sys.exit(_explain(fault.field, fault.message, CONFIGURATION_EXIT))
    except Interrupted as error:
        sys.exit(_explain(SOURCE, f"{error}; what has arrived is kept", EXIT_AGAIN))
    except OSError as error:
        sys.exit(_explain("spec.model.cache", f"the volume cannot be written: {error}", EXIT_AGAIN))


def persist(bring: Callable[[], None], *, keep_trying: bool, pause: Callable[[float], object] = time.sleep) -> None:
    """Bring the models. Raises Fault, OSError, and Interrupted unless `keep_trying`.

    A pod of a replica of several nodes keeps trying: LeaderWorkerSet answers the restart of any container by creating all pods of the
    group again, and what is on their own volumes would be lost.
    """
    wait = FIRST_PAUSE
    while True:
        try:
            return bring()
        except Interrupted as error:
            if not keep_trying:
                raise
            log.warning("%s; it goes on in %.0f s", error, wait)
            pause(wait)
            wait = min(2 * wait, LONGEST_PAUSE)


def _link_all(arguments: argparse.Namespace, meter: progress.Meter) -> None:
    models = Cache(arguments.cache)
    for name, uri in arguments.models:
        source = source_of(uri, arguments.pull_secrets)
        link(arguments.into / name, fetched(source, uri, models, meter, arguments.cache_size))


def source_of(uri: str, secrets: Path | None) -> Source:
    """Where the model comes from. `secrets` is the folder of the pod's pull secrets. Raises Fault."""
    if uri.startswith(registry.SCHEME):
        return registry.Artifact(uri, os.environ, secrets)
    return (bucket.Bucket if uri.startswith(bucket.SCHEMES) else hub.Hub)(uri, os.environ)


def fetched(source: Source, uri: str, models: Cache, meter: progress.Meter, size: int | None) -> Path:
    """The folder of the model, fetched where it is not there, within a cache of `size` bytes. Raises Fault, Interrupted or OSError."""
    if source.pinned and models.complete(folder := models.folder(source.folder, source.pinned)):
        with suppress(FileNotFoundError):  # it gives way to another pod's model at this moment
            return models.use(folder)
    try:
        model = source.model()
    except Interrupted as error:
        if source.pinned or not (kept := models.versions(source.folder, uri)):
            raise
        log.warning("%s; the kept version %s is used", error, kept[0].name)
        return models.use(kept[0])
    folder = models.folder(source.folder, model.version)
    meter.begin(model.size, lambda: transfer.on_disk(folder, model.files))
    with models.locked(source.folder):
        if not models.complete(folder):
            models.plan(folder, model, size)
            _bring(source, uri, models, folder, model, size)
        models.note(folder, uri)
        return models.use(folder)


def _bring(source: Source, uri: str, models: Cache, folder: Path, model: Model, size: int | None) -> None:
    models.check_room(folder, model)
    log.info("%s: %d files, %.1f GB, version %s", uri, len(model.files), model.size / 1e9, model.version)
    transfer.fetch_all(source, model.files, folder)
    if model.archives:
        model = archives.unpack(uri, folder, model)
        models.plan(folder, model, size)
    models.keep(folder, uri, model)


def link(name: Path, folder: Path) -> None:
    """Make `name` a link to the folder, in place of an earlier one."""
    name.parent.mkdir(parents=True, exist_ok=True)
    new = name.with_name(f".{name.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(folder, target_is_directory=True)
    new.replace(name)


def _explain(field: str, message: str, status: int) -> int:
    """Write the cause for the operator and for people; return the exit status."""
    log.error("%s: %s", field, message)
    with suppress(OSError):  # outside of a pod
        Path(os.environ.get("PAGEFLEET_TERMINATION_LOG", "/dev/termination-log")).write_text(
            json.dumps({"field": field, "message": message[:2000]})
        )
    return status


if __name__ == "__main__":
    run()
