"""Models of the Hugging Face hub, or of a mirror with the same layout (HF_ENDPOINT).

Source: https://huggingface.co/docs/hub/api: `GET /api/models/NAME/revision/REVISION?blobs=true` lists a commit's files with their sizes
and hashes, and `GET /NAME/resolve/COMMIT/FILE` has their bytes. A commit's files never change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from pagefleet_fetch import web
from pagefleet_fetch.files import SOURCE, Fault, Interrupted, Model, RemoteFile, chosen

SCHEME = "hf://"
DEFAULT_ENDPOINT, ENDPOINT, TOKEN = "https://huggingface.co", "HF_ENDPOINT", "HF_TOKEN"
MAX_LISTING = 64 << 20
NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*(/[A-Za-z0-9][-A-Za-z0-9._]*)?")
REVISION = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/]*")
COMMIT, SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")


class Hub:
    """One model of a hub. `environment` has HF_ENDPOINT and HF_TOKEN. Raises Fault for a URI or an endpoint that cannot be."""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        name, _, revision = uri.removeprefix(SCHEME).partition("@")
        if not NAME.fullmatch(name) or (revision and not REVISION.fullmatch(revision)) or ".." in uri:
            raise Fault(SOURCE, f"{uri} must be hf://org/name[@revision]")
        self._endpoint = (environment.get(ENDPOINT) or DEFAULT_ENDPOINT).rstrip("/")
        if not self._endpoint.startswith(("https://", "http://")):
            raise Fault("spec.engine.env", f"{ENDPOINT} must begin with https:// or http://")
        token = environment.get(TOKEN, "").strip()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._uri, self._name, self._revision = uri, name, revision or "main"
        self._web = web.Web(self._endpoint)
        self._commit = self._revision if COMMIT.fullmatch(self._revision) else ""

    @property
    def folder(self) -> str:
        """The model's folder in a cache, without its version."""
        return f"hub/{self._name.replace('/', '--')}"

    @property
    def pinned(self) -> str:
        """The commit where the URI names one; else only the hub knows it."""
        return self._commit

    def model(self) -> Model:
        url = f"{self._endpoint}/api/models/{self._name}/revision/{quote(self._revision, safe='')}?blobs=true"
        answer = self._web.get(url, {**self._headers, "Accept": "application/json"})
        self._check(answer)
        text = b""
        for chunk in web.body(answer, url):
            text += chunk
            if len(text) > MAX_LISTING:
                raise Fault(SOURCE, f"{self._uri}: {self._endpoint} lists more files than a model has")
        try:
            commit, files = listed(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Interrupted(f"{self._endpoint} answers with what is no list of a model's files") from error
        self._commit = commit
        return Model(commit, chosen(self._uri, files))

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        url = f"{self._endpoint}/{self._name}/resolve/{self._commit}/{quote(file.name)}"
        answer = self._web.get(url, {**self._headers, **({"Range": f"bytes={offset}-"} if offset else {})})
        self._check(answer, file.name)
        yield from web.rest(answer, url, offset)

    def _check(self, answer: web.Response, file: str = "") -> None:
        """Raises Fault for an answer that will not change by itself."""
        if answer.status in (200, 206):
            return
        answer.close()
        what = f"{self._uri}: {file}" if file else self._uri
        match answer.status:
            case 401 | 403:
                raise Fault(
                    SOURCE,
                    f"{what}: {self._endpoint} answers {answer.status}: there is no such model, or only some may read it; then "
                    f"spec.engine.env has to have {TOKEN} of an account that may, from a Secret",
                )
            case 404:
                raise Fault(SOURCE, f"{what}: {self._endpoint} has no such model or revision (404)")
            case status:
                raise Fault(SOURCE, f"{what}: {self._endpoint} answers {status}")


def listed(document: Any) -> tuple[str, list[RemoteFile]]:
    """The commit and its files. Raises ValueError, KeyError or TypeError for a document of another form."""
    commit = str(document["sha"])
    if not COMMIT.fullmatch(commit):
        raise ValueError("no commit")
    files = []
    for entry in document["siblings"]:
        large = entry.get("lfs") or {}
        size = large["size"] if large else entry["size"]
        sha256, blob = str(large.get("sha256") or ""), str(entry.get("blobId") or "")
        if type(size) is not int or size < 0 or (sha256 and not SHA256.fullmatch(sha256)):
            raise ValueError(f"no size or hash of {entry['rfilename']}")
        known = blob if not large and COMMIT.fullmatch(blob) else ""
        files.append(RemoteFile(str(entry["rfilename"]), size, sha256, known, commit))
    return commit, files
