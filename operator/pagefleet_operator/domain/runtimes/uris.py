"""Where in a pod a model, a draft model or an adapter lies: pvc:// URIs become paths below the claim's mount, oci:// URIs paths
below that of the image, and hf://, s3://, gs:// and az:// URIs links to what the fetching container has brought, as are oci:// URIs
with spec.model.oci: Fetch."""

from __future__ import annotations

from pagefleet_operator.domain.base.revision_spec import Model

PVC, OCI, FILE, HUB = "pvc://", "oci://", "file://", "hf://"
BROUGHT = (HUB, "s3://", "gs://", "az://")  # what the fetching container always brings
MODELS, IMAGES, FETCHED = "/models", "/model-images", "/tmp/models"  # noqa: S108 - a volume of the pod's own
DIGEST = "@sha256:"
SHOWN_DIGITS = 16  # of a digest, in a path


def sources(model: Model) -> tuple[tuple[str, str], ...]:
    """The URIs of the model, its draft model ("" without one) and its adapters, each after its field of the spec."""
    return (
        ("spec.model.source", model.source),
        ("spec.model.speculation.model", model.speculation.model),
        *((f"spec.model.adapters[{index}].source", one.source) for index, one in enumerate(model.adapters)),
    )


def claims(model: Model) -> tuple[str, ...]:
    """The claims that the model, its draft model and its adapters lie on, each once."""
    claims = (source.removeprefix(PVC).partition("/")[0] for _, source in sources(model) if source.startswith(PVC))
    return tuple(dict.fromkeys(claims))


def images(model: Model) -> tuple[str, ...]:
    """The images that are mounted for the model, its draft model and its adapters, one for each digest."""
    references = (image(source) for _, source in sources(model) if mounted(source, model))
    return tuple({image_path(one): one for one in references}.values())


def mounted(source: str, model: Model) -> bool:
    """Whether `source` is an image that becomes a volume. Total: the source may be of any type."""
    return str(source).startswith(OCI) and not model.fetches_images


def brought(source: str, model: Model) -> bool:
    """Whether the fetching container brings `source`."""
    return source.startswith((*BROUGHT, OCI) if model.fetches_images else BROUGHT)


def image(source: str) -> str:
    """The reference of the image of an oci:// URI, with its digest and without the path."""
    name, _, rest = source.removeprefix(OCI).partition(DIGEST)
    return f"{name}{DIGEST}{rest.partition('/')[0]}"


def mount_path(claim: str) -> str:
    return f"{MODELS}/{claim}"


def image_path(reference: str) -> str:
    """Where an image is mounted: the same digest has the same files, whatever registry it comes from."""
    return f"{IMAGES}/{reference.partition(DIGEST)[2][:SHOWN_DIGITS]}"


def fetched(model: Model) -> tuple[str, ...]:
    """The URIs of the model, its draft model and its adapters that a container brings before the engine starts, each once."""
    return tuple(dict.fromkeys(source for _, source in sources(model) if brought(source, model)))


def link_name(source: str) -> str:
    """The name of the link to a fetched model: what the URI says after its scheme, or after the first digits of its digest, as one
    segment of a path."""
    if source.startswith(OCI):
        digest, _, path = source.partition(DIGEST)[2].partition("/")
        return "--".join((digest[:SHOWN_DIGITS], *path.strip("/").split("/"))).removesuffix("--")
    return source.partition("://")[2].strip("/").replace("/", "--")


def in_pod(source: str, model: Model) -> str:
    """`source`, one of those of `model`, as the engine takes model URIs."""
    if mounted(source, model):
        reference = image(source)
        return f"{FILE}{image_path(reference)}{source.removeprefix(OCI + reference)}"
    if brought(source, model):
        return f"{FILE}{FETCHED}/{link_name(source)}"
    return f"{FILE}{MODELS}/{source.removeprefix(PVC)}" if source.startswith(PVC) else source


def path_in_pod(source: str, model: Model) -> str:
    """The path of a pvc://, oci://, file:// or fetched URI."""
    return "/" + in_pod(source, model).removeprefix(FILE).lstrip("/")
