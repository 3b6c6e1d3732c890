"""Protects a whole gateway as the endpoint picker of InferencePools: what a conforming gateway asks over gRPC for a pool of
other model servers is answered with that pool's pods, and an InferenceService beside it is found by its host name."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from support.gateway.fleet import until

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.settings import Settings

DESTINATION = "x-gateway-destination-endpoint"
POOL = {
    "metadata": {"namespace": "team", "name": "qwen"},
    "spec": {
        "selector": {"matchLabels": {"app": "qwen"}},
        "targetPorts": [{"number": 9000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9003}},
    },
}
POD = {
    "metadata": {"namespace": "team", "name": "q-1", "uid": "q-1", "labels": {"app": "qwen"}},
    "status": {"podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]},
}


async def asked(stub: service.ExternalProcessorStub, host: str, model: str) -> proto.ProcessingResponse:
    """Return the answer to a request with a full-duplex body."""
    stream = stub.Process()
    values = {":path": "/v1/completions", ":method": "POST", ":authority": host}
    headers = [base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()]
    mode = ProcessingMode.FULL_DUPLEX_STREAMED
    await stream.write(
        proto.ProcessingRequest(
            request_headers=proto.HttpHeaders(headers=base_pb2.HeaderMap(headers=headers)),
            protocol_config=proto.ProtocolConfiguration(request_body_mode=mode, response_body_mode=mode),
        )
    )
    body = json.dumps({"model": model, "prompt": "x"}).encode()
    await stream.write(proto.ProcessingRequest(request_body=proto.HttpBody(body=body, end_of_stream=True)))
    answer = await stream.read()
    await stream.done_writing()
    while await stream.read() is not grpc.aio.EOF:
        pass
    assert isinstance(answer, proto.ProcessingResponse)
    return answer


def endpoint(answer: proto.ProcessingResponse) -> str:
    value: str = answer.dynamic_metadata["envoy.lb"][DESTINATION]
    return value


async def test_a_pools_requests_meet_its_pods_and_a_services_its_own() -> None:
    state = State()
    settings = Settings(
        port=0,
        internal_port=0,
        address="127.0.0.1",
        picker_port=0,
        picker_tls=False,
        settle_seconds=0,
        namespace="team",
        pools="picker",
    )
    gateway = Gateway(settings, state, lambda _: None)
    assert gateway.pools is not None
    state.put_service(Service("team", "chat", "smol", (("aaaaaaaa", 100),)))
    gateway.pools.put_hosts(("team", "chat"), ("chat.example.org",))
    state.put_pod(Pod("c-1", "c-1", "team", "chat", "aaaaaaaa", "10.0.0.1:8000"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(gateway.close)
        await gateway.start()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{gateway.picker_port}"))
        stub = service.ExternalProcessorStub(channel)
        unknown = await asked(stub, "other.example.org", "qwen3")
        assert unknown.immediate_response.status.code == 404
        gateway.pools.put(POOL)
        gateway.pools.put_pod(POD)
        await until(lambda: state.are_confirmed(state.pods))  # Envoy knows them
        assert endpoint(await asked(stub, "other.example.org", "qwen3")) == "10.0.0.7:9000"
        assert endpoint(await asked(stub, "chat.example.org", "qwen3")) == "10.0.0.1:8000"
        assert endpoint(await asked(stub, "other.example.org", "smol")) == "10.0.0.1:8000"
        gateway.pools.remove(POOL)
        assert (await asked(stub, "other.example.org", "qwen3")).immediate_response.status.code == 404
