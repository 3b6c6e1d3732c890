"""The decision for one request: its service, revision and pods, or a refusal. No I/O; the time is an argument.

Never waits and never proxies: it names the pods, and Envoy sends the request there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pagefleet_contract.strata import stratum
from pagefleet_gateway.bodies.edits import capped, may_be_changed, prioritized
from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.state import Pod, Snapshot, State
from pagefleet_gateway.cluster.steps import Steps
from pagefleet_gateway.envoy.stream_timeout import NO_STREAM_TIMEOUT, stream_timeout
from pagefleet_gateway.envoy.timeouts import REQUEST_SECONDS
from pagefleet_gateway.limits.api_keys import APIKeys
from pagefleet_gateway.limits.charges import Charges, OpenCharge
from pagefleet_gateway.limits.rate_limits import Charge, RateLimits
from pagefleet_gateway.picking import refusals
from pagefleet_gateway.picking.booking import LOG_LINE_SECONDS, Booking
from pagefleet_gateway.picking.classes import engine_priority, gives_way, saturated
from pagefleet_gateway.picking.deaths import Content, content
from pagefleet_gateway.picking.expected import LoadsAtPick
from pagefleet_gateway.picking.ledger import Group, Ledger
from pagefleet_gateway.picking.pick import Admitted, Pick, Request
from pagefleet_gateway.picking.prefill.choice import may_split, prefill_pods
from pagefleet_gateway.picking.prompts.prefixes import Prefixes
from pagefleet_gateway.picking.prompts.request_cost import RequestCost, request_cost
from pagefleet_gateway.picking.ranking import Ranking
from pagefleet_gateway.picking.routing import Refusal, client_key, route
from pagefleet_gateway.picking.score import candidates
from pagefleet_gateway.picking.split import Splits, Weights, canary_forced

Lane = tuple[frozenset[str] | None, bool]  # the subset hint, and whether the canary is forced


class Picker:
    """Holds the draws and the prefixes; reads the state; writes the ledger."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        rng: random.Random,
        readings: Readings | None = None,
        api_keys: Callable[[], APIKeys | None] = lambda: None,
    ) -> None:
        """`api_keys` returns those in force; None when the gateway demands none."""
        self._api_keys = api_keys
        self._state = state
        self._ledger = ledger
        self._rng = rng
        self._readings = readings or Readings(ledger.known_in_flight)
        self._loads = LoadsAtPick(
            state, self._readings, (ledger.expected_answers, ledger.expected_times), ledger.load_on
        )
        self.splits = Splits(rng)
        self.prefixes = Prefixes()
        self._readings.on_size = self.prefixes.resize
        self._booking = Booking(self._loads, self.prefixes, ledger.backlogs)
        self._ranking = Ranking(ledger, self._readings, self.prefixes, rng)
        self.limits = RateLimits()
        self.charges = Charges(self.limits)
        # The key that a pod's engine demands: "" for none, None when it is not known.
        self.engine_key: Callable[[Pod], str | None] = lambda _: ""
        # The most important class of a service of which a request waits in a gateway, None for none.
        self.held_class: Callable[[ServiceKey], int | None] = lambda _: None
        self._swept_keys: APIKeys | None = None

    def decide(self, request: Request, now: float) -> Pick | Refusal:
        """Choose for a request and open its ticket."""
        admitted = self.admit(request, now)
        if isinstance(admitted, Refusal):
            return admitted
        decision = self.choose(admitted, now)
        if isinstance(decision, Refusal):
            self.charges.refund(request.id)
        return decision

    def admit(self, request: Request, now: float) -> Admitted | Refusal:
        """Find the request's service and charge its limits: once per request. `settle` or `refund` ends the charge."""
        key = client_key(self._api_keys(), request.headers)  # first: without a key nobody learns which services exist
        if isinstance(key, Refusal):
            return key
        name = key.name if key is not None else ""
        service = route(self._state.snapshot, request.method, request.path, request.body, key)
        if isinstance(service, Refusal):
            return replace(service, api_key=name)
        if refused := refusals.given_up(service, service.class_name(request.headers)):
            return replace(refused, api_key=name)
        cost = request_cost(request.body, request.path)
        if service.limits or key is not None:
            most = cost.prompt_tokens + cost.most_output_tokens(service)
            charge = self.limits.take(service, request.headers, most, now, key)
            if not isinstance(charge, Charge):
                return replace(refusals.limited(service, charge), api_key=name)
            held = service.hold_seconds_of(service.priority(request.headers))
            deadline = now + held + _seconds_to_end(service)
            self.charges.open(request.id, OpenCharge(charge, service.key, cost.prompt_tokens, deadline, name))
        return Admitted(request, service, cost, now, name)

    def choose(self, admitted: Admitted, now: float) -> Pick | Refusal:
        """Choose pods and open the request's ticket. After a refusal it may be called again."""
        request, cost = admitted.request, admitted.cost
        snapshot = self._state.snapshot
        service = snapshot.services.get(admitted.service.key, admitted.service)
        pick = self._pick(snapshot, service, request, cost, now)
        instead_of: Group | None = None
        charge: Charge | None = None  # to the limits of the service that answers instead
        # One step only: a fallback's own fallback could lead in a circle.
        other = snapshot.services.get((service.namespace, service.fallback))
        if isinstance(pick, Refusal) and other is not None and other.key != service.key:
            instead = self._pick(snapshot, other, request, cost, now)
            charge = self._taken_over(other, admitted, now) if isinstance(instead, Pick) else None
            if isinstance(instead, Pick) and charge is not None:
                instead_of = self._failing(snapshot, service, request, cost)
                pick, service = replace(instead, fallback=f"{other.namespace}/{other.name}"), other
        pick = self._given_way(service, pick, request, now)
        if isinstance(pick, Pick):
            known = content(service.key, request.body)
            pick = self._spared(service, pick, known, now)
            if isinstance(pick, Pick) and admitted.api_key:
                pick = self._keyed(service, pick)
            if isinstance(pick, Pick):
                pick = self._edited(service, pick, request, now)
            if isinstance(pick, Pick):
                pick = self._with_prefill(snapshot, service, pick, request, cost, now)
                self._ledger.open(request.id, self._booking.ticket(admitted, service, pick, known, now), instead_of)
        if charge is not None and not isinstance(pick, Pick):
            self.limits.settle(charge, 0, counts=False)
        elif charge is not None and (charge.of_requests or charge.of_tokens):
            opened = OpenCharge(charge, service.key, cost.prompt_tokens, now + _seconds_to_end(service))
            self.charges.add(request.id, opened)
        # The gateway's keys are no engine's business.
        return replace(pick, api_key=admitted.api_key) if admitted.api_key else pick

    def _taken_over(self, other: Service, admitted: Admitted, now: float) -> Charge | None:
        """Charge the limits of a service that answers another one's request. None where they, or classes that it gives up, refuse it."""
        request, cost = admitted.request, admitted.cost
        if refusals.given_up(other, other.class_name(request.headers)) is not None:
            return None
        charged = self.charges.charged(request.id)  # both charges end with the same tokens
        most = cost.prompt_tokens + cost.most_output_tokens(other) if charged is None else charged
        charge = self.limits.take(other, request.headers, most, now) if other.limits else Charge(most)
        return charge if isinstance(charge, Charge) else None

    def lane(self, admitted: Admitted) -> Lane:
        """Return what the pods that the request may go to depend on. Requests of one lane wait for the same pods."""
        request = admitted.request
        service = self._state.snapshot.services.get(admitted.service.key, admitted.service)
        return (request.subset, canary_forced(service, request.headers))

    def has_room(self, admitted: Admitted) -> bool:
        """Return whether a pod with traffic may get one more request of any kind."""
        service = self._state.snapshot.services.get(admitted.service.key, admitted.service)
        pods = self._state.snapshot.pods.get(service.key, {})
        live: Weights = tuple((name, weight) for name, weight in service.weights if weight > 0 and pods.get(name))
        return any(self._ranking.below_limit(service, pods[name]) for name in self._drawn(service, live, pods))

    def has_service(self, key: ServiceKey) -> bool:
        return key in self._state.snapshot.services

    def may_answer(self, key: ServiceKey, asked: ServiceKey) -> bool:
        """Return whether a service's pods answer requests to another one: it is the same one, or its fallback."""
        service = self._state.snapshot.services.get(asked)
        return key == asked or (service is not None and (service.namespace, service.fallback) == key)

    def has_pods(self, key: ServiceKey) -> bool:
        return any(self._state.snapshot.pods.get(key, {}).values())

    def sweep(self, now: float) -> Steps:
        """Forget services, pods and API keys that are gone, and charges whose request can no longer end."""
        services, keys = self._state.services, self._api_keys()
        yield from self.charges.sweep(services, now)
        yield from self.limits.retain_services(services)
        self.limits.budgets.forget_past()
        if keys is not self._swept_keys:
            self._swept_keys = keys
            self.limits.retain_keys(() if keys is None else keys.all)
        yield from self.splits.retain(services)
        yield from self._ledger.retries.retain(services)
        yield from self._loads.retain()
        self._ledger.backlogs.paces.refresh()
        yield
        yield from self.prefixes.retain(self._state.known.caches)

    def _given_way(self, service: Service, pick: Pick | Refusal, request: Request, now: float) -> Pick | Refusal:
        """Return the pick, or a refusal where background work or a sheddable request finds no capacity that others leave."""
        if isinstance(pick, Refusal):
            sheddable = pick.code == refusals.OVERLOADED and service.is_sheddable(request.headers)
            return refusals.shed(service) if sheddable else pick
        refusal = refusals.without_capacity(service, request.headers)
        return refusal if refusal and gives_way(*self._queues(service, pick, request, now)) else pick

    def _failing(self, snapshot: Snapshot, service: Service, request: Request, cost: RequestCost) -> Group | None:
        """Return the requests that one which falls back would be among. A gateway that chose the subset may be to blame."""
        ready = [name for name, pods in snapshot.pods.get(service.key, {}).items() if pods]
        revision = "" if request.subset is not None else self.splits.failing(service, ready, request.headers)
        return Group(*service.key, revision, stratum(cost.prompt_tokens)) if revision else None

    def _keyed(self, service: Service, pick: Pick) -> Pick | Refusal:
        """Return the pick with the engine's own key: a client that has a key of the gateway has none of the engine's."""
        key = self.engine_key(pick.choices[0])
        return refusals.engine_key_unknown(service) if key is None else replace(pick, engine_key=key)

    def _edited(self, service: Service, pick: Pick, request: Request, now: float) -> Pick | Refusal:
        """Return the pick with the changes of the body: the engine's priority, and the cap of new tokens in a peak or at risk. A body that
        cannot be changed is refused: its client would have what priority and how many tokens it likes."""
        pods = filter(None, (*pick.choices, pick.mirror))
        first = engine_priority(service, service.priority(request.headers), pods)
        edits = () if first is None else prioritized(request.body, request.path, first)
        peak = service.peak_output_tokens  # the queues of all pods are read only where there is a cap
        peak = peak if peak and saturated(*self._queues(service, pick, request, now)) else 0
        most = min(filter(None, (service.slo_output_tokens, peak)), default=0)
        cap = capped(request.body, request.path, most) if most else ()
        asked = first is not None or most
        if asked and not (edits or cap or may_be_changed(request.body, request.path)):  # what was changed could be read
            return refusals.unreadable(service)
        return replace(pick, edits=edits + cap, peak_output_tokens=most if cap else 0) if edits or cap else pick

    def _with_prefill(
        self, snapshot: Snapshot, service: Service, pick: Pick, request: Request, cost: RequestCost, now: float
    ) -> Pick:
        """Return the pick with the prefill pods of its decode pods' revisions."""
        pools = snapshot.prefill.get(service.key)
        if not pools or not may_split(request.method, request.path):
            return pick
        decodes = filter(None, (*pick.choices, pick.mirror))
        best = partial(self._ranking.sound, cost=cost, now=now)
        return replace(pick, prefill=prefill_pods(pools, decodes, cost, self.prefixes, best))

    def _queues(
        self, service: Service, pick: Pick, request: Request, now: float
    ) -> tuple[int, int | None, list[float]]:
        """Return the request's class, the most important class that waits in a gateway, and what waits in each engine."""
        pods = self._state.snapshot.pods.get(service.key, {}).get(pick.revision, ())
        waiting = [self._readings.of(pod, now).waiting for pod in pods]
        return service.priority(request.headers), self.held_class(service.key), waiting

    def _spared(self, service: Service, pick: Pick, known: Content | None, now: float) -> Pick | Refusal:
        """Return the pick for one pod alone, or a refusal, where engines may have died of this request."""
        deaths = self._ledger.deaths
        if not deaths.suspected(known):
            return pick
        if wait := deaths.wait(known, now):
            return refusals.ends_engines(service, deaths.count(known), wait)
        return replace(pick, choices=pick.choices[:1], retries=0, mirror=None)

    def _pick(
        self, snapshot: Snapshot, service: Service, request: Request, cost: RequestCost, now: float
    ) -> Pick | Refusal:
        pods, headers = snapshot.pods.get(service.key, {}), request.headers
        if request.subset is not None:
            pods = {name: tuple(pod for pod in own if pod.address in request.subset) for name, own in pods.items()}
        live: Weights = tuple((name, weight) for name, weight in service.weights if weight > 0 and pods.get(name))
        # Only the canary's header leads to a canary that has no weight.
        canary_live = bool(service.canary and pods.get(service.canary))
        forced = canary_live and canary_forced(service, headers)
        if not live and not forced:
            if request.subset is not None and service.weights:
                return refusals.outside_subset(service, len(request.subset))
            return refusals.unready(service)
        targets = [service.canary] if forced else self._drawn(service, live, pods)
        # One question for all revisions, before the draw: a full revision must not lose its share to another.
        if service.pod_limit and not any(self._ranking.below_limit(service, pods[name]) for name in targets):
            return refusals.overloaded(service)
        revision = self.splits.choose(service, live, headers, canary_live)
        if revision not in targets:
            revision = max((entry for entry in live if entry[0] in targets), key=lambda entry: entry[1])[0]
        attempts = 1 + (service.retries if self._ledger.retries.allows(service.key) else 0)
        own = self._ranking.choices(service, pods[revision], cost, attempts, now)
        spare: list[Pod] = []
        if len(own) < attempts:
            # All attempts carry one key.
            secret = own[0].key_secret
            rest = [pod for name, _ in live if name != revision for pod in pods[name] if pod.key_secret == secret]
            spare = self._ranking.best(rest, cost, attempts - len(own), now)
        chosen = candidates(own, spare, attempts)
        mirror = self._mirror(service, revision, pods, cost, now)
        if mirror is not None and mirror.key_secret != chosen[0].key_secret:
            mirror = None  # its engine would refuse the other's key
        return Pick(
            revision,
            tuple(chosen),
            service.timeout_seconds,
            attempts - 1,
            mirror=mirror,
            # The first byte of an answer that is not streamed is its end: `traffic.timeout` bounds that.
            stream_timeout=stream_timeout(service.first_token_seconds, service.next_token_seconds, attempts - 1)
            if cost.streams
            else NO_STREAM_TIMEOUT,
            include_usage=cost.streams and cost.include_usage,
            forced=forced,
        )

    def _mirror(
        self, service: Service, revision: str, pods: Mapping[str, Sequence[Pod]], cost: RequestCost, now: float
    ) -> Pod | None:
        """Return the pod that gets a copy, for `percent` of the requests that do not go to the mirrored revision anyway.

        A pod at its limit gets none: a copy never waits.
        """
        mirrored, percent = service.mirror
        own = self._ranking.below_limit(service, pods.get(mirrored, ()))
        if not own or mirrored == revision or self._rng.random() * 100 >= percent:
            return None
        return self._ranking.best(own, cost, 1, now)[0]

    def _drawn(self, service: Service, live: Weights, pods: Mapping[str, Sequence[Pod]]) -> list[str]:
        """Return the revisions for which requests are drawn: a canary that is tried enough only where there is no other."""
        names = [name for name, _ in live]
        return [name for name in names if not self._tried_enough(service, name, pods)] or names

    def _tried_enough(self, service: Service, revision: str, pods: Mapping[str, Sequence[Pod]]) -> bool:
        """Whether the revision is a canary that has not answered yet, and as many requests wait for it as may."""
        trials = self._ledger.trials
        if not trials.tries(service, revision):
            return False
        return sum(self._ledger.in_flight(pod) for pod in pods[revision]) >= trials.requests


def _seconds_to_end(service: Service) -> float:
    """Return the time after which no end of a request that was sent can come."""
    return (service.timeout_seconds or REQUEST_SECONDS) + LOG_LINE_SECONDS
