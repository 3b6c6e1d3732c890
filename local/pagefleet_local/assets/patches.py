"""What the Kubernetes 1.20 source needs to work when built with Go 1.18 or newer.

The vendored reflect2 1.0.1 links to the runtime's `reflect.mapiterinit`, which took two arguments and takes three since
Go 1.18; unpatched, the API server dies of the first custom resource. reflect2 1.0.2 made the same change.
"""

from __future__ import annotations

from pathlib import Path

REFLECT2 = "vendor/github.com/modern-go/reflect2"
ITERATOR = """\
	t           unsafe.Pointer
	h           unsafe.Pointer
	buckets     unsafe.Pointer
	bptr        unsafe.Pointer
	overflow    *[]unsafe.Pointer
	oldoverflow *[]unsafe.Pointer
	startBucket uintptr
	offset      uint8
	wrapped     bool
	B           uint8
	i           uint8
	bucket      uintptr
	checkBucket uintptr
"""
PATCHES = (
    (
        f"{REFLECT2}/unsafe_link.go",
        "func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer) *hiter",
        "func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer, it *hiter)",
    ),
    (f"{REFLECT2}/unsafe_link.go", "\t// rest fields are ignored\n", ITERATOR),
    (
        f"{REFLECT2}/unsafe_map.go",
        "\treturn &UnsafeMapIterator{\n\t\thiter:      mapiterinit(type2.rtype, *(*unsafe.Pointer)(obj)),",
        "\tvar it hiter\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), &it)\n"
        "\treturn &UnsafeMapIterator{\n\t\thiter:      &it,",
    ),
)


def apply(tree: Path) -> None:
    """Patch the source below `tree`. Raises ValueError when a place is not as expected."""
    for name, old, new in PATCHES:
        path = tree / name
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{name} is not the source this patch is for: {old!r} occurs {text.count(old)} times")
        path.write_text(text.replace(old, new))
