"""The structure of `.spec.pod`: what a cluster's own rules ask of a replica's pods. The engine does not depend on it."""

from __future__ import annotations

from pagefleet_contract.names import OBJECT_NAME
from pagefleet_operator.domain.spec.schema.fields import keyed, record, table, text
from pagefleet_operator.domain.spec.schema.patterns import LABEL, LABEL_VALUE

POD = record(
    "What the cluster's rules ask of a replica's pods. A change makes a new revision.",
    {
        "labels": table(
            "Labels of the pods and of the object that makes them, such as kueue.x-k8s.io/queue-name. The operator's own "
            "labels are refused.",
            {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
        ),
        "annotations": table(
            "Annotations of the pods and of the object that makes them.", {"type": "string", "maxLength": 4096}
        ),
        "imagePullSecrets": keyed(
            "Secrets of the service's namespace with which images are pulled, of the engine and of load tests.",
            "name",
            record(
                "A Secret of type kubernetes.io/dockerconfigjson.",
                {"name": text("The name of the Secret.", pattern=OBJECT_NAME)},
                ("name",),
            ),
            16,
        ),
        "serviceAccountName": text(
            "The pods' ServiceAccount, such as one with an identity of the cloud; default when omitted. Its token is not mounted.",
            pattern=OBJECT_NAME,
        ),
        "priorityClassName": text("The PriorityClass of the pods.", pattern=OBJECT_NAME),
        "schedulerName": text("The scheduler of the pods; the cluster's default when omitted.", pattern=OBJECT_NAME),
        "runtimeClassName": text("The RuntimeClass of the pods.", pattern=OBJECT_NAME),
        "resourceClaims": keyed(
            "Devices of dynamic resource allocation, which the engine uses.",
            "name",
            record(
                "A core/v1 PodResourceClaim, with resourceClaimName or resourceClaimTemplateName.",
                {
                    "name": text("The name of the claim in this spec.", pattern=LABEL, longest=63),
                    "resourceClaimName": text("A ResourceClaim, which all pods share.", pattern=OBJECT_NAME),
                    "resourceClaimTemplateName": text(
                        "A ResourceClaimTemplate: each pod gets a claim of its own.", pattern=OBJECT_NAME
                    ),
                    "request": text("The one request of the claim that is used; all when omitted.", longest=126),
                    "accelerators": {
                        "type": "boolean",
                        "description": "Whether spec.resources.accelerator comes from it. Pods then ask for no extended "
                        "resource: its name and count tell the engine what the claim gives.",
                    },
                },
                ("name",),
            ),
            8,
        ),
    },
)
