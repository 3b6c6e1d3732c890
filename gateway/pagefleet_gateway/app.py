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
import time
from asyncio.subprocess import Process
from collections import OrderedDict
from collections.abc import Callable, Coroutine

from aiohttp import web

from pagefleet_contract.addresses import listening_socket
from pagefleet_contract.headers import is_background
from pagefleet_contract.names import GATEWAY
from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.scrapes import Scrapes
from pagefleet_gateway.cluster.service import ServiceKey
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.deciding import Deciding
from pagefleet_gateway.fronts.authz import AuthzConnection
from pagefleet_gateway.fronts.hang_guard import HangGuard
from pagefleet_gateway.fronts.picker_health import serve_health
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.holding.pacing import Paced
from pagefleet_gateway.limits.budgets import Budgets
from pagefleet_gateway.limits.budgets_file import BudgetsFile
from pagefleet_gateway.limits.charges import Answer, Used
from pagefleet_gateway.limits.keyring import Keyring
from pagefleet_gateway.measuring import access_log
from pagefleet_gateway.measuring.counting import Counting
from pagefleet_gateway.measuring.log_lines import log_lines
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Admitted, Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.refusals import NO_IDLE_CAPACITY
from pagefleet_gateway.picking.routing import Refusal
from pagefleet_gateway.proxy import GatewayError, Proxy
from pagefleet_gateway.settings import Settings
from pagefleet_gateway.sharing.loads import Loads
from pagefleet_gateway.sharing.members import Members
from pagefleet_gateway.sharing.news import Newsroom
from pagefleet_gateway.sharing.quotas import Quotas
from pagefleet_gateway.upkeep import Upkeep
from pagefleet_gateway.watching.engine_keys import EngineKeys, Read
from pagefleet_gateway.watching.kube import ClusterWatch
from pagefleet_gateway.watching.pools import Pools
from pagefleet_gateway.web import application

log = logging.getLogger(__name__)

# Each request that waits for its pick has a connection. So many may wait to be accepted as the kernel allows (net.core.somaxconn: 4,096).
PICKER_BACKLOG = 65_535
MAX_REFUSALS = 10_000  # refused requests whose log line has not come, and log lines whose request has not come


class Gateway:
    """A running gateway: call `start`, then `run`, which returns after a stop, then `close`.

    `emit` gets each line of the gateway's access log.
    """

    def __init__(self, settings: Settings, state: State, emit: Callable[[bytes], object]) -> None:
        self.settings = settings
        self.state = state
        self.pools = Pools(state, settings.pools) if settings.pools else None
        self.ledger = Ledger()
        self.readings = Readings(self.ledger.known_in_flight)
        # The draw needs no secrecy, only an order that clients cannot follow.
        self._rng = rng = random.Random(secrets.randbits(64))  # noqa: S311
        self.picker = Picker(state, self.ledger, rng, self.readings, lambda: self.keyring.keys)
        self.engine_keys = EngineKeys()
        self._keys_read = settings.api_keys_file is None
        self.picker.engine_key = self.engine_keys.of
        self.picker.limits.budgets = Budgets(f"{settings.pod_name}-{secrets.token_hex(4)}")
        self._budgets_file = BudgetsFile(settings.budgets_file, self.picker.limits.budgets)
        self.members = Members(settings.pod_name)
        self.members.listen(lambda _: self.ledger.trials.share(1 + len(self.members.addresses)))
        self.quotas = Quotas(self.picker.limits, self.members)
        self.holding = Holding(
            self.picker, time.monotonic, self._on_wake, on_arrival=self._on_arrival, name=settings.pod_name
        )
        # Each of several hundred services that wait for a pod takes some tens of microseconds.
        self._releasing = Paced(self.holding.release, time.monotonic)
        self.deciding = Deciding(state, self.holding, self.quotas, self.ledger.close)
        self.newsroom = Newsroom(self.ledger, self.picker.prefixes, self.holding, self.picker.limits.budgets)
        self.loads = Loads(self.newsroom, self.members, self._release_held)
        self.metrics = Metrics(self.ledger, self.holding, self.picker.limits.budgets)
        self.keyring = Keyring(settings.api_keys_file, self.metrics.keys_valid)
        self._refused: OrderedDict[str, Refusal] = OrderedDict()  # by request id, until its log line comes
        self._left: OrderedDict[str, None] = OrderedDict()  # ids of requests that were over before their pick
        # The wall clock is read once: when it jumps, slices still follow each other.
        offset = time.time() - time.monotonic()
        self.windows = Windows(f"{settings.pod_name}-{secrets.token_hex(4)}", self.ledger, offset)
        self.counting = Counting(self.ledger, self.windows, self.metrics, time.monotonic)
        self.holding.on_left = self.counting.record_left
        # Why the watch is not ready, "" when it is. Set before `start` where there is a watch.
        self.unsynced_reason: Callable[[], str] = str
        self.internal_port = settings.internal_port
        self.picker_port = settings.picker_port
        self._emit = emit
        self._draining = False
        self._request_ended = asyncio.Event()  # set at each request's end
        self.upkeep = Upkeep(state, self.counting, self.picker)
        self.proxy = Proxy(settings, state, self.upkeep.garbage.settle)
        self._closing = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Raises GatewayError when Envoy does not become live."""
        self.proxy.open(self._closing)
        # Not at once: a writer of the state must not run the requests that waited for it.
        self.state.on_change = self._releasing.soon
        await self._serve_authz()
        await self._serve_internal()
        if self.settings.picker_port is not None:
            await self._serve_ext_proc(self.settings.picker_port)
        process = await self.proxy.start(self._closing, self.counting.record_report)
        self._run("access log", self._read_log(process))
        self._run("endpoints", self.proxy.follow())
        self._run("readings", Scrapes(self.state, self.readings).follow())
        self._run("keyring", self.keyring.follow())
        self._run("budgets file", self._budgets_file.follow())
        self._run("slices", self.counting.follow())
        self._run("quotas", self.quotas.follow())
        self._run("loads", self.loads.follow())
        self._run("upkeep", self.upkeep.follow())

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. Raises GatewayError when a part ends unasked."""
        if self.proxy.process is None:
            raise GatewayError("Gateway.run() was called before Gateway.start()")
        stopping = asyncio.create_task(stop.wait())
        ending = asyncio.create_task(self.proxy.process.wait())
        await asyncio.wait([stopping, ending, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        self._raise_if_ended(ending)
        try:
            await self._drain()
        finally:
            ending.cancel()

    @property
    def port(self) -> int:
        return self.proxy.port

    @property
    def tls_port(self) -> int:
        return self.proxy.tls_port

    def follow(self, watch: ClusterWatch) -> None:
        """Feed the state from the cluster."""
        self._run("watch", watch.follow())

    def read_engine_keys(self, read: Read) -> None:
        """Read the engines' keys, where this gateway demands keys of its own from clients."""
        if self.settings.api_keys_file is not None:
            self._run("engine keys", self.engine_keys.follow(self.state, read))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._budgets_file.save()
        await self._closing.aclose()

    def not_ready_reason(self) -> str:
        """Return why the gateway is not ready, "" when it is."""
        if self._draining:
            return "the gateway drains: it is shutting down"
        return self.proxy.not_ready_reason(self._unready_reason)

    def _unready_reason(self) -> str:
        """Return why the picker does not know enough yet. Keys of engines that come later make no gateway unready."""
        reason = self.unsynced_reason()
        if reason or self._keys_read:
            return reason
        if self.engine_keys.untried(self.state):
            return "the API server was not asked for all engines' keys yet"
        self._keys_read = True
        return ""

    def _run(self, name: str, work: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _raise_if_ended(self, ending: asyncio.Task[int]) -> None:
        if ending.done():
            raise GatewayError(f"Envoy ended unasked with status {ending.result()}; its last log lines name the cause")
        for task in self._tasks:
            if task.done():
                raise GatewayError(f"the gateway's task {task.get_name()!r} ended unasked") from task.exception()

    def _decide(self, request: Request) -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        decision = self.deciding.decide(request)
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

    def _count(self, request: Request, decision: Pick | Refusal) -> None:
        if isinstance(decision, Refusal):
            self.picker.charges.refund(request.id)
            if decision.code != NO_IDLE_CAPACITY:  # background work that gives way is no request that the fleet sheds
                self.metrics.record_refusal(*(decision.service or ("", "")), decision.status)
            refusing = self.state.snapshot.services.get(decision.service or ("", ""))
            if refusing is not None:
                self.counting.record_refusal(refusing, decision.status, refusing.priority(request.headers))
            self._refused[request.id] = decision
            if len(self._refused) > MAX_REFUSALS:
                self._refused.popitem(last=False)
        elif request.id in self._left:
            # Its client left while the picker was busy, so no other log line will end it.
            del self._left[request.id]
            self.ledger.close(request.id)

    def _on_arrival(self, admitted: Admitted) -> None:
        # GETs, such as lists of models, are no work for an engine. Background work comes until it finds idle capacity.
        if admitted.request.method == "POST" and not is_background(admitted.request.headers):
            self.windows.record_arrival(admitted.service.key, time.monotonic())

    def _release_held(self) -> None:
        """Let go what can go now that another gateway has fewer requests in flight."""
        if self.holding.queued_by_service():
            self._releasing.soon()

    def _decide_pooled(self, request: Request) -> Pick | Refusal | asyncio.Future[Pick | Refusal]:
        return self._decide(request if self.pools is None else self.pools.with_service_path(request))

    def _on_wake(self, key: ServiceKey) -> None:
        self.metrics.record_wakeup(key)
        log.info("%s/%s: a request waits, and the service has no ready pod: sent a wake-up", *key)

    async def _serve_authz(self) -> None:
        """Answer Envoy's requests for decisions on the private Unix socket."""
        guard = HangGuard()
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: AuthzConnection(self._decide, self._rng, guard),
            str(self.proxy.paths.picker),
            backlog=PICKER_BACKLOG,
        )
        guard.listen(server.sockets[0].fileno())
        self._closing.enter_context(serve_health(self.proxy.paths.picker_health, guard.hangs))
        self._run("hang guard", guard.follow())
        self._closing.callback(server.close)

    async def _serve_internal(self) -> None:
        held = (self.holding.held, self.holding.held_by_service)
        server = application(self.not_ready_reason, self.metrics, self.windows, *held)
        server.add_routes([*self.quotas.routes(), *self.loads.routes()])
        server.on_shutdown.append(self.loads.close)
        runner = web.AppRunner(server, access_log=None)
        await runner.setup()
        self._closing.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listening_socket(self.settings.address, self.settings.internal_port)).start()
        self.internal_port = runner.addresses[0][1]

    async def _serve_ext_proc(self, port: int) -> None:
        # gRPC writes a line for each failed handshake, and not as JSON.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        # Imported here: only gateways that pick for other gateways need gRPC and its 30 MB.
        from pagefleet_gateway.fronts import ext_proc, ext_proc_limits, ext_proc_server, ext_proc_tls

        settings = self.settings
        callbacks = ext_proc.Callbacks(
            self._decide_pooled, self._complete, self._drop, self.counting.record_first_token
        )
        picker = ext_proc.EndpointPicker(
            callbacks, ext_proc_limits.Limits(settings.max_request_bytes, settings.picker_exchanges)
        )
        names = (settings.pod_name, GATEWAY)
        tls = (settings.picker_tls, settings.picker_tls_folder, settings.picker_client_ca)
        listen = ext_proc_server.Listen(settings.address, port, *tls, names)
        try:
            server, self.picker_port = await ext_proc_server.serve(picker, listen, self.not_ready_reason)
        except ext_proc_tls.PickerTLSError as error:
            raise GatewayError(f"the endpoint picker cannot listen with TLS: {error}") from error
        self._closing.push_async_callback(server.stop, 1.0)

    def _drop(self, line: access_log.LogLine) -> None:
        """End a request whose answer came from no picked pod. Its client has had the answer all the same, and pays for it."""
        self.counting.drop(line.id)
        self._settle(line)
        self._request_ended.set()
        self.holding.release()

    async def _read_log(self, process: Process) -> None:
        if process.stdout is None:
            raise GatewayError("Envoy's stdout is not a pipe")
        async for line in log_lines(process.stdout):
            match line:
                case access_log.LogLine():
                    self._complete(line)
                case access_log.FailedAttempt():
                    access_log.record_attempt(line, self.ledger, time.monotonic())

    def _complete(self, line: access_log.LogLine) -> None:
        """Account for a request that is over."""
        completion = self.counting.complete(line)
        used = self._settle(line)
        self._request_ended.set()
        if completion is not None:  # else no pod had it
            self.holding.release(freed=(completion.namespace, completion.service))
        refusal = self._refused.pop(line.id, None)
        if completion is None and refusal is None:
            self._left[line.id] = None
            if len(self._left) > MAX_REFUSALS:
                self._left.popitem(last=False)
        api_key = completion.api_key if completion is not None else refusal.api_key if refusal is not None else ""
        if api_key:
            self.metrics.record_key_request(api_key, line.code, completion, used)
        self._emit(access_log.rendered(line, completion, refusal))

    def _settle(self, line: access_log.LogLine) -> Used | None:
        answer = Answer(line.code, line.tokens, line.prompt_tokens, line.body_bytes)
        return self.picker.charges.settle(line.id, answer)

    async def _drain(self) -> None:
        self._draining = True
        self.holding.close()
        log.info("draining: %d requests are in flight", len(self.ledger))
        # Requests still arrive until every kube-proxy has removed this pod.
        await asyncio.sleep(self.settings.settle_seconds)
        await self.proxy.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                while len(self.ledger):
                    self._request_ended.clear()
                    await self._request_ended.wait()
        log.info("drained: %d requests are still in flight", len(self.ledger))
