"""The gRPC health service on the endpoint picker's port. Source: gRPC Health Checking Protocol (grpc.health.v1).

The endpoint-picker protocol names the services: `liveness` is SERVING while the picker answers at all. `readiness` and the
ext_proc service itself are SERVING while the gateway is ready. "" means the whole server, and is as ready as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import IntEnum
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

NAME = "grpc.health.v1.Health"
LIVENESS, READINESS = "liveness", "readiness"
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
WATCH_SECONDS = 1.0  # between two looks at the readiness
MAX_WATCHES = 100  # watches that are open at the same time


class Status(IntEnum):
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


def _messages() -> tuple[Any, Any]:
    """Return the classes of the protocol's two messages. Its enum is an int32 on the wire, and so it is here."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="pagefleet/health.proto", package="pagefleet.health", syntax="proto3"
    )
    for message, field, kind in (
        ("Request", "service", kinds.TYPE_STRING),
        ("Response", "status", kinds.TYPE_INT32),
    ):
        one = file.message_type.add(name=message)
        one.field.add(name=field, number=1, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, response = (pool.FindMessageTypeByName(f"pagefleet.health.{name}") for name in ("Request", "Response"))
    return message_factory.GetMessageClass(request), message_factory.GetMessageClass(response)


HealthRequest, HealthResponse = _messages()


class Health:
    """Answers Check and Watch. `not_ready_reason` returns why the gateway is not ready, "" when it is."""

    def __init__(self, not_ready_reason: Callable[[], str]) -> None:
        self._not_ready_reason = not_ready_reason
        self._watches = 0

    def status(self, service: str) -> Status:
        if service == LIVENESS:
            return Status.SERVING
        if service in ("", READINESS, EXT_PROC):
            return Status.NOT_SERVING if self._not_ready_reason() else Status.SERVING
        return Status.SERVICE_UNKNOWN

    async def check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        status = self.status(request.service)
        if status is Status.SERVICE_UNKNOWN:
            known = ", ".join(("an empty name", LIVENESS, READINESS, EXT_PROC))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r}; use {known}")
        return HealthResponse(status=status)

    async def watch(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        """Send the status now, and again whenever it changes, until the client ends it."""
        if self._watches >= MAX_WATCHES:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHES} health watches are open, which is the limit"
            )
        self._watches += 1
        try:
            sent: Status | None = None
            while True:
                status = self.status(request.service)
                if status is not sent:
                    sent = status
                    yield HealthResponse(status=status)
                await asyncio.sleep(WATCH_SECONDS)
        finally:
            self._watches -= 1

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        coding = {
            "request_deserializer": HealthRequest.FromString,
            "response_serializer": HealthResponse.SerializeToString,
        }
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, **coding),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, **coding),
            },
        )
