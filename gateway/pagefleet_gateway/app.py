"""Puts the gateway together: Envoy, the picker beside it, the watch and the internal HTTP server.

The gateway ends when one of them does. Decides nothing about requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import tempfile
import time
from asyncio.subprocess import Process
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from pathlib import Path

from aiohttp import web

from pagefleet_contract.names import GATEWAY
from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.state import ServiceKey, State
from pagefleet_gateway.envoy import process as envoy
from pagefleet_gateway.envoy import tls
from pagefleet_gateway.envoy.bootstrap import PLAIN, SECURE, ListenAddress, bootstrap, to_json
from pagefleet_gateway.envoy.clusters import Paths
from pagefleet_gateway.envoy.connections import EnvoyLimits
from pagefleet_gateway.envoy.endpoints import Endpoints
from pagefleet_gateway.envoy.module import library
from pagefleet_gateway.fronts.authz import AuthzConnection
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.limits.charges import Answer
from pagefleet_gateway.limits.keyring import Keyring
from pagefleet_gateway.limits.peers import Peers
from pagefleet_gateway.measuring import access_log
from pagefleet_gateway.measuring.counting import Counting
from pagefleet_gateway.measuring.first_tokens import FirstTokens
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Admitted, Pick, Picker, Request
from pagefleet_gateway.picking.routing import Refusal
from pagefleet_gateway.settings import Settings
from pagefleet_gateway.watching.kube import ClusterWatch
from pagefleet_gateway.watching.pools import Pools
from pagefleet_gateway.web import application

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # for Envoy to become live
SWEEP_SECONDS = 5.0
MAX_REFUSALS = 10_000  # refused requests whose log line has not come


class GatewayError(RuntimeError):
    """A part of the gateway ended unasked; the message names it."""


class Gateway:
    """A running gateway: call `start`, then `run`, which returns after a stop, then `close`.

    `emit` gets each line of the gateway's access log.
    """

    def __init__(self, settings: Settings, state: State, emit: Callable[[bytes], object]) -> None:
        self.settings = settings
        self.state = state
        self.pools = Pools(state, settings.pools) if settings.pools else None
        self.ledger = Ledger()
        self.readings = Readings(self.ledger.in_flight)
        # The draw needs no secrecy, only an order that clients cannot follow.
        rng = random.Random(secrets.randbits(64))  # noqa: S311
        self.picker = Picker(state, self.ledger, rng, self.readings, lambda: self.keyring.keys)
        self.peers = Peers(self.picker.limits, settings.pod_name)
        self.holding = Holding(self.picker, time.monotonic, self._on_wake, on_arrival=self._on_arrival)
        self.metrics = Metrics(self.ledger, self.holding)
        self.keyring = Keyring(settings.api_keys_file, self.metrics.keys_valid)
        self._rng = rng
        self._refused: OrderedDict[str, Refusal] = OrderedDict()  # by request id, until its log line comes
        # The wall clock is read once: when it jumps, slices still follow each other.
        offset = time.time() - time.monotonic()
        self.windows = Windows(f"{settings.pod_name}-{secrets.token_hex(4)}", self.ledger, offset)
        self.counting = Counting(self.ledger, self.windows, self.metrics, time.monotonic)
        self.unsynced_reason: Callable[[], str] = lambda: (
            ""
        )  # why the watch is not ready; set before `start` where there is a watch
        self.port = settings.port
        self.tls_port = settings.tls_port
        self.internal_port = settings.internal_port
        self.picker_port = settings.picker_port
        self._emit = emit
        self._draining = False
        self._live = False
        self._request_ended = asyncio.Event()  # set at each request's end
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-", dir=settings.temporary)
        self._paths = Paths(Path(self._folder.name))
        self._endpoints = Endpoints(state, self._paths.endpoints)
        self._closing = contextlib.AsyncExitStack()
        self._envoy: Process | None = None
        self._admin: envoy.Admin | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Raises GatewayError when Envoy does not become live."""
        self._closing.callback(self._folder.cleanup)
        self.state.on_change = self._release_soon
        await self._serve_authz()
        await self._serve_internal()
        if self.settings.picker_port is not None:
            await self._serve_ext_proc(self.settings.picker_port)
        self._write_configuration()
        process, admin = await self._start_envoy()
        self._run("access log", self._read_log(process))
        self._run("endpoints", self._endpoints.follow(admin))
        self._run("readings", self.readings.follow(self.state))
        self._run("keyring", self.keyring.follow())
        self._run("slices", self.counting.follow())
        self._run("quotas", self.peers.follow())
        self._run("sweep", self._sweep())

    def _write_configuration(self) -> None:
        limits = EnvoyLimits(self.settings.max_request_bytes)
        listen = ListenAddress(
            self.settings.address,
            self.settings.port if self.settings.plaintext else None,
            self.settings.tls_port if self.settings.tls_folder else None,
        )
        if self.settings.tls_folder is not None:
            self._paths.certificate.write_text(to_json(tls.certificate_discovery(self.settings.tls_folder)))
        document = bootstrap(self.settings.pod_name, listen, self._paths, limits, self.settings.spans)
        self._paths.bootstrap.write_text(to_json(document))
        self._endpoints.write()

    async def _start_envoy(self) -> tuple[Process, envoy.Admin]:
        try:
            library.require_release(envoy.version())
            filters = await asyncio.to_thread(library.compile_library)
        except library.LibraryError as error:
            raise GatewayError(str(error)) from error
        self._first_tokens = FirstTokens(
            self._paths.first_tokens, lambda token: self.counting.record_first_token(token.request_id, token.seconds)
        )
        self._closing.callback(self._first_tokens.close)
        self._envoy = await envoy.start(self._paths.bootstrap, self.settings.workers, filters.parent)
        self._closing.push_async_callback(envoy.stop, self._envoy, 5.0)
        self._admin = envoy.Admin(self._paths.admin)
        self._closing.push_async_callback(self._admin.close)
        await self._until_live(self._envoy, self._admin)
        if self.settings.plaintext:
            self.port = await self._admin.port(PLAIN)
        if self.settings.tls_folder is not None:
            self.tls_port = await self._admin.port(SECURE)
        return self._envoy, self._admin

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. Raises GatewayError when a part ends unasked."""
        if self._envoy is None:
            raise GatewayError("Gateway.run() was called before Gateway.start()")
        stopping = asyncio.create_task(stop.wait())
        ending = asyncio.create_task(self._envoy.wait())
        await asyncio.wait([stopping, ending, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        self._raise_if_ended(ending)
        try:
            await self._drain()
        finally:
            ending.cancel()

    def follow(self, watch: ClusterWatch) -> None:
        """Feed the state from the cluster."""
        self._run("watch", watch.follow())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._closing.aclose()

    def not_ready_reason(self) -> str:
        """Return why the gateway is not ready, "" when it is."""
        if self._draining:
            return "the gateway drains: it is shutting down"
        if self._admin is None or not self._live:
            return "Envoy is not live yet"
        return self.unsynced_reason()

    def _run(self, name: str, work: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _raise_if_ended(self, ending: asyncio.Task[int]) -> None:
        if ending.done():
            raise GatewayError(f"Envoy ended unasked with status {ending.result()}; its last log lines name the cause")
        for task in self._tasks:
            if task.done():
                raise GatewayError(f"the gateway's task {task.get_name()!r} ended unasked") from task.exception()

    def _decide(self, request: Request) -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        decision = self.holding.decide(request)
        if isinstance(decision, Refusal) and self.peers.may_have(decision.bucket):
            decision = asyncio.ensure_future(self._decide_with_peers(request))
        if isinstance(decision, asyncio.Future):
            decision.add_done_callback(
                lambda later: (
                    self.picker.charges.refund(request.id)
                    if later.cancelled()
                    else self._count(request, later.result())
                )
            )
        else:
            self._count(request, decision)
        return decision

    async def _decide_with_peers(self, request: Request) -> Pick | Refusal:
        """Decide again after the other gateway pods were asked for their part of the quota."""
        await self.peers.exchange()
        decision = self.holding.decide(request)
        return await decision if isinstance(decision, asyncio.Future) else decision

    def _count(self, request: Request, decision: Pick | Refusal) -> None:
        if isinstance(decision, Refusal):
            self.picker.charges.refund(request.id)
            self.metrics.record_refusal(*(decision.service or ("", "")), decision.status)
            self._refused[request.id] = decision
            if len(self._refused) > MAX_REFUSALS:
                self._refused.popitem(last=False)

    def _on_arrival(self, admitted: Admitted) -> None:
        # GETs, such as lists of models, are no work for an engine.
        if admitted.request.method == "POST":
            self.windows.record_arrival(admitted.service.key, time.monotonic())

    def _release_soon(self) -> None:
        # Not at once: a writer of the state must not run the requests that waited for it.
        asyncio.get_running_loop().call_soon(self.holding.release)

    def _decide_pooled(self, request: Request) -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        return self._decide(request if self.pools is None else self.pools.with_service_path(request))

    def _on_wake(self, key: ServiceKey) -> None:
        self.metrics.record_wakeup(key)
        log.info("%s/%s: a request waits, and the service has no ready pod: sent a wake-up", *key)

    async def _serve_authz(self) -> None:
        """Answer Envoy's requests for decisions on the private Unix socket."""
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: AuthzConnection(self._decide, self._rng), str(self._paths.picker), backlog=1024
        )
        self._closing.callback(server.close)

    async def _serve_internal(self) -> None:
        held = (self.holding.held, self.holding.held_by_service)
        server = application(self.not_ready_reason, self.metrics, self.windows, *held)
        server.add_routes(self.peers.routes())
        runner = web.AppRunner(server, access_log=None)
        await runner.setup()
        self._closing.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, self.settings.address, self.settings.internal_port)
        await site.start()
        self.internal_port = runner.addresses[0][1]

    async def _serve_ext_proc(self, port: int) -> None:
        # gRPC writes a line for each failed handshake, and not as JSON.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        # Imported here: only gateways that pick for other gateways need gRPC and its 30 MB.
        from pagefleet_gateway.fronts import ext_proc, ext_proc_server, ext_proc_tls

        settings = self.settings
        callbacks = ext_proc.Callbacks(
            self._decide_pooled, self._complete, self._drop, self.counting.record_first_token
        )
        picker = ext_proc.EndpointPicker(
            callbacks, ext_proc.Limits(settings.max_request_bytes, settings.picker_exchanges)
        )
        listen = ext_proc_server.Listen(
            settings.address,
            port,
            settings.picker_tls,
            settings.picker_tls_folder,
            settings.picker_client_ca,
            (settings.pod_name, GATEWAY),
        )
        try:
            server, self.picker_port = await ext_proc_server.serve(picker, listen, self.not_ready_reason)
        except ext_proc_tls.PickerTLSError as error:
            raise GatewayError(f"the endpoint picker cannot listen with TLS: {error}") from error
        self._closing.push_async_callback(server.stop, 1.0)

    def _drop(self, request_id: str) -> None:
        """End a request of another gateway whose answer came from no picked pod: it counts nowhere but here."""
        self.ledger.close(request_id)
        self.metrics.outcomes_dropped.inc()
        self._request_ended.set()
        self.holding.release()

    async def _until_live(self, process: Process, admin: envoy.Admin) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await admin.ready():
                    if process.returncode is not None:
                        raise GatewayError(
                            f"Envoy ended at its start with status {process.returncode}; its log lines name the cause"
                        )
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise GatewayError(
                f"Envoy was not live within {START_SECONDS:.0f} s; its log lines name the cause"
            ) from error
        self._live = True

    async def _read_log(self, process: Process) -> None:
        if process.stdout is None:
            raise GatewayError("Envoy's stdout is not a pipe")
        while True:
            try:
                text = await process.stdout.readline()
            except ValueError:
                log.warning("dropped a line of Envoy's access log that is longer than %d bytes", envoy.LINE_LIMIT)
                continue
            if not text:
                return
            match access_log.parse(text):
                case access_log.LogLine() as line:
                    self._complete(line)
                case access_log.FailedAttempt() as attempt:
                    access_log.record_attempt(attempt, self.ledger, time.monotonic())
                case None:
                    pass

    def _complete(self, line: access_log.LogLine) -> None:
        """Account for a request that is over."""
        completion = self.counting.complete(line)
        answer = Answer(line.code, line.tokens, line.prompt_tokens, line.body_bytes)
        self.picker.charges.settle(line.id, answer)
        self._request_ended.set()
        self.holding.release()
        refusal = self._refused.pop(line.id, None)
        api_key = completion.api_key if completion is not None else refusal.api_key if refusal is not None else ""
        if api_key:
            self.metrics.record_key_request(api_key, line.code, line.tokens)
        self._emit(access_log.rendered(line, completion, refusal))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.counting.sweep(self.state)
            self.picker.sweep(time.monotonic())

    async def _drain(self) -> None:
        self._draining = True
        self.holding.close()
        log.info("draining: %d requests are in flight", len(self.ledger))
        # Requests still arrive until every kube-proxy has removed this pod.
        await asyncio.sleep(self.settings.settle_seconds)
        if self._admin is not None:
            await self._admin.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                while len(self.ledger):
                    self._request_ended.clear()
                    await self._request_ended.wait()
        log.info("drained: %d requests are still in flight", len(self.ledger))
