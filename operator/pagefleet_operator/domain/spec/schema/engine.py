"""The structure of `.spec.model` and `.spec.engine`: what the engine serves, and how.

New fields here get no default: it would be filled into every stored spec, change its revision's hash, and roll out
every service when the operator is upgraded. Descriptions say what the engine does without the field.
"""

from __future__ import annotations

from pagefleet_contract.disaggregation import (
    DEFAULT_MIN_PROMPT_TOKENS,
    DEFAULT_PREFILL_TIMEOUT,
    MAX_PREFILL_REPLICAS,
)
from pagefleet_contract.engine_options import (
    BATCH_SIZES,
    DEFAULT_DRAFT_TOKENS,
    MAX_ADAPTERS,
    MAX_ANSWERS,
    MAX_DRAFT_TOKENS,
    MAX_NODES,
    MIN_CACHE_TOKENS,
    PAGE_SIZES,
    SPECULATION_METHODS,
)
from pagefleet_contract.names import KV_EVENTS_PORT, KV_REPLAY_PORT, OBJECT_NAME
from pagefleet_contract.quantity import QUANTITY
from pagefleet_operator.domain.runtimes.adapter import HEADS
from pagefleet_operator.domain.runtimes.catalog import REGISTRY
from pagefleet_operator.domain.spec.schema.custom_runtime import CUSTOM
from pagefleet_operator.domain.spec.schema.fields import (
    array,
    choice,
    integer,
    key_of,
    keyed,
    number,
    record,
    text,
    time_limit,
)
from pagefleet_operator.domain.spec.schema.patterns import ADAPTER, SERVED_NAME, SOURCE_FORMS, URI, VARIABLE

KV_DTYPES = ("auto", "float32", "float16", "bfloat16", "fp8")

SPECULATION = record(
    "Speculative decoding: draft tokens are proposed, and several are verified in one step. Answers do not change.",
    {
        "method": choice(
            "ngram: draft tokens come from the sequence's own n-grams (our engine's choice on a CPU when omitted). draft: from a "
            "smaller model. eagle, eagle3: from heads trained on the model's own hidden states (eagle: runtimes vllm and sglang). none: "
            "no speculation.",
            (*SPECULATION_METHODS[:-2], *HEADS, SPECULATION_METHODS[-1]),
        ),
        "tokens": integer("Most draft tokens in one step.", 1, MAX_DRAFT_TOKENS, default=DEFAULT_DRAFT_TOKENS),
        "model": text(
            f"The smaller model with the same tokenizer of method draft, or the heads of eagle and eagle3: {SOURCE_FORMS}.",
            pattern=URI,
            longest=1024,
        ),
    },
    ("method",),
)

ADAPTERS = keyed(
    "LoRA adapters in PEFT's format, loaded at the start. Clients name one in `model`.",
    "name",
    record(
        "An adapter.",
        {
            "name": text("What clients put into `model`.", pattern=ADAPTER, longest=128),
            "source": text(
                "The adapter's folder: pvc://claim/path, oci://registry/name@sha256:DIGEST/path or file:///path.",
                pattern=URI,
                longest=1024,
            ),
        },
        ("name", "source"),
    ),
    MAX_ADAPTERS,
)

MODEL = record(
    "The model and how it is loaded.",
    {
        "source": text(f"Where the weights are: {SOURCE_FORMS}.", pattern=URI, longest=1024),
        "servedName": text(
            "What clients put into `model`. The service's name when omitted.", pattern=SERVED_NAME, longest=128
        ),
        "maxLength": integer("Most tokens of prompt and output together. The model's own when omitted.", 2, 1 << 24),
        "quantization": choice(
            "The precision that the weights are loaded in.", ("none", "int8", "fp8", "awq"), default="none"
        ),
        "speculation": SPECULATION,
        "adapters": ADAPTERS,
        "cache": record(
            "Where fetched weights (hf://, s3://, gs://, az://, and oci:// with oci: Fetch) are kept beyond a replica's end, so that each is fetched once and not by every "
            "replica. Without it: in the replica's own temporary volume.",
            {
                "claim": text(
                    "A PersistentVolumeClaim in the service's namespace, ReadWriteMany.", pattern=OBJECT_NAME
                ),
                "size": text(
                    "What all models on the claim may have together, such as 500Gi. Before a model is fetched, those that no pod "
                    "has started with for longest are deleted. Not limited when omitted.",
                    pattern=QUANTITY,
                    longest=16,
                ),
            },
            ("claim",),
        ),
        "oci": choice(
            "How what oci:// URIs name comes to a replica. Mount: the kubelet pulls the image and mounts it, which needs Kubernetes 1.35, or "
            "1.31 with a feature gate. Fetch: the replica's first container fetches the artifact or the image's layers, on any Kubernetes. "
            "Mount when omitted.",
            ("Mount", "Fetch"),
        ),
        "chatTemplate": record(
            "A Jinja chat template instead of the model's own. It is read when a replica starts: to roll a change out, "
            "give it another name or key.",
            {"configMapKeyRef": key_of("ConfigMap", "The key of a ConfigMap that holds the template.")},
            ("configMapKeyRef",),
        ),
    },
    ("source",),
)

LIMITS = record(
    "What a request may ask for.",
    {
        "promptTokens": integer("Most prompt tokens of a request.", 1, 1 << 24),
        "outputTokens": integer("Most output tokens of a request.", 1, 1 << 24),
        "queued": integer("Most queued requests of a replica; beyond it 429. 256 when omitted.", 1, 100000),
        "queuedTokens": integer(
            "Most tokens of a replica's queued prompts; beyond it 429. Not limited when omitted.",
            1,
            1 << 30,
        ),
        "answers": integer("Most answers to one prompt (`n`). 16 when omitted.", 1, MAX_ANSWERS),
    },
)

KV_CACHE = record(
    "The paged cache of keys and values.",
    {
        "pageSize": {
            "type": "integer",
            "description": "Tokens per page. 16 when omitted.",
            "enum": list(PAGE_SIZES),
        },
        "pages": integer(
            f"Pages in all, of {MIN_CACHE_TOKENS} tokens at least; sized from the memory when omitted.", 2, 1 << 24
        ),
        "memoryFraction": number(
            "Share of the memory, less the weights, that pages take; 0.9 when omitted. Runtimes vllm, sglang and tgi on GPUs: share of "
            "the GPU's memory for weights and pages together. vllm on a CPU: share of spec.resources.memory for pages.",
            0.05,
            1.0,
        ),
        "dtype": choice(
            "Precision of keys and values; auto when omitted. fp8 (E4M3) and bfloat16 with our engine need NVIDIA GPUs.",
            KV_DTYPES,
        ),
        "prefixCaching": {
            "type": "boolean",
            "description": "Keep the pages of prompts for later ones that begin alike; on when omitted.",
        },
        "events": {
            "type": "boolean",
            "description": f"Publish what the prefix cache takes in and gives up, as vLLM's KV events (ZeroMQ, port {KV_EVENTS_PORT}; "
            f"replays on port {KV_REPLAY_PORT}), for pickers of others such as llm-d's. The events carry the tokens of every prompt. "
            "Off when omitted.",
        },
    },
)


def _sizes(name: str) -> str:
    """The engine's own size on each device, for people."""
    cpu, cuda = (getattr(BATCH_SIZES[device], name) for device in ("cpu", "cuda"))
    return f"{cpu:,} when omitted, with NVIDIA GPUs {cuda:,}"


SCHEDULING = record(
    "The requests and tokens that one step of the engine computes.",
    {
        "policy": choice(
            "priority: a request's `priority` decides, then its arrival; fcfs: its arrival alone. priority when omitted.",
            ("fcfs", "priority"),
        ),
        "maxSequences": integer(f"Most sequences in one step. {_sizes('sequences')}.", 1, 4096),
        "tokensPerStep": integer(
            f"Most tokens of one step. {_sizes('tokens')}; maxSequences or chunkTokens where that is more.", 1, 1 << 20
        ),
        "chunkTokens": integer(
            f"Most tokens of one prompt in a step. {_sizes('chunk_tokens')}, and then only of a prompt of more than "
            "512, with NVIDIA GPUs of more than 2,048.",
            1,
            1 << 20,
        ),
    },
)

DISAGGREGATION = record(
    "Prompts are computed by prefill pods of the same revision, which give their KV pages to the replicas, the decode pods. With runtime "
    "vllm (NixlConnector) these are long prompts, and a decode pod computes one itself where the prefill pods cannot. With runtime sglang "
    "these are all prompts, and without prefill pods a request is answered 503.",
    {
        "prefill": record(
            "The pods that compute prompts, each with spec.resources.",
            {
                "replicas": integer(
                    "Prefill pods of each revision that has replicas. Their number does not follow the load.",
                    1,
                    MAX_PREFILL_REPLICAS,
                ),
                "timeout": time_limit(
                    f"How long a prefill pod may take for a prompt. {DEFAULT_PREFILL_TIMEOUT} when omitted."
                ),
            },
            ("replicas",),
        ),
        "minPromptTokens": integer(
            "Fewest tokens of a prompt that the decode pod has not cached for which a prefill pod is asked. "
            f"{DEFAULT_MIN_PROMPT_TOKENS} when omitted. Not with runtime sglang.",
            1,
            1 << 24,
        ),
    },
    ("prefill",),
)

ENGINE = record(
    "The engine that serves the model.",
    {
        "runtime": choice("The engine that the replicas run.", tuple(REGISTRY), default="pagefleet"),
        "nodes": integer(
            "Pods that together are one replica, each with spec.resources: the model is shared by all their "
            "accelerators. Above 1 it needs LeaderWorkerSet (leaderworkerset.x-k8s.io/v1). 1 when omitted.",
            1,
            MAX_NODES,
        ),
        "pipelineParallelSize": integer(
            "Groups of layers that a replica's accelerators are divided into; within each, every layer is shared. 1 when "
            "omitted.",
            1,
            64,
        ),
        "image": text("The engine's image; the runtime's own for the accelerator when omitted.", longest=512),
        "refresh": text(
            "Any text, such as a date. A changed one makes a new revision, which takes the defaults of the operator as it "
            "is now: image, flags, probes, details of the pod. Running revisions keep theirs when the operator is upgraded.",
            longest=63,
        ),
        "startTimeout": time_limit(
            "Longest time from the start of the engine's container until it has its model and can serve; then it is restarted. For a "
            "large model on slow storage give more than it takes, at most 24h. 30m when omitted."
        ),
        "args": array("More flags for the engine, as they stand.", text("A flag.", longest=1024), 64),
        "env": keyed(
            "Environment variables of the engine.",
            "name",
            record(
                "A variable, with value or valueFrom.",
                {
                    "name": text("The name of the variable.", pattern=VARIABLE),
                    "value": text("The value of the variable, as it stands.", longest=4096),
                    "valueFrom": record(
                        "Where its value is. The pods of a revision start when the object is there.",
                        {
                            "secretKeyRef": key_of("Secret", "A key of a Secret, such as a token for hf:// sources."),
                            "configMapKeyRef": key_of("ConfigMap", "A key of a ConfigMap."),
                        },
                    ),
                },
                ("name",),
            ),
            64,
        ),
        "limits": LIMITS,
        "kvCache": KV_CACHE,
        "scheduling": SCHEDULING,
        "apiKeySecretRef": key_of(
            "Secret",
            "API keys, one a line: requests need one of them as Authorization: Bearer KEY. Changed keys are in force "
            "within about a minute, without new pods.",
        ),
        "toolCallParser": choice(
            "How the model writes its tool calls, as vLLM names it (openai: harmony, gpt-oss's). hermes when omitted.",
            ("hermes", "llama3_json", "mistral", "qwen3_coder", "deepseek_v3", "openai", "pythonic"),
        ),
        "disaggregation": DISAGGREGATION,
        **CUSTOM,
    },
)
