"""The figures of bench/results/*.json as Markdown: `python bench/gpubench/table.py` prints it, `--write FILE` puts it between
FILE's lines `<!-- gpu figures -->` and `<!-- end of gpu figures -->`. What was not measured is not in it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpubench.measure import RESULTS

BEGIN, END = "<!-- gpu figures -->", "<!-- end of gpu figures -->"


def engine_rows(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield "| load | side | tokens/s, decode | tokens/s, with prompts | of the floor | ready, s |"
    yield "|---|---|---|---|---|---|"
    for line in lines:
        if line["failed"]:
            continue
        best = line["decode"] or line["whole"]
        ratio = f"{best / line['floor']:.0%}" if line["floor"] else ""
        decode = f"{line['decode']:,.0f}" if line["decode"] else ""
        whole = f"{line['whole']:,.0f}" if line["whole"] else ""
        yield f"| {line['name']} | {line['side']} | {decode} | {whole} | {ratio} | {line['ready']:.1f} |"


def kernel_rows(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| kernel | us | rate | of the machine's limit | beside it |"
    yield "|---|---|---|---|---|"
    for row in rows:
        rate = f"{row['rate']:,.0f} {row['unit']}"
        yield f"| {row['name']} | {row['microseconds']:.1f} | {rate} | {row['ratio']:.0%} | {row['peer']} |"


def rendered(documents: list[dict[str, Any]]) -> str:
    """Empty where nothing was measured."""
    parts = []
    for document in documents:
        limits = ""
        if "copy_bandwidth" in document:
            limits = (f": copies {document['copy_bandwidth'] / 1e12:.2f} TB/s, "
                      f"bf16 matmul {document['matmul_rate'] / 1e12:.0f} TFLOP/s")  # fmt: skip
        parts.append(f"**{document['gpu']}**{limits}, torch {document['torch']}.")
        if document.get("engine"):
            parts.append("\n".join(engine_rows(document["engine"])))
        if document.get("rows"):
            parts.append("\n".join(kernel_rows(document["rows"])))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, default=None, metavar="FILE")
    options = parser.parse_args()
    text = rendered([json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))])
    if options.write is None:
        print(text or "nothing was measured on a GPU yet")
        return
    before, begin, rest = options.write.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        parser.error(f"{options.write} lacks the lines {BEGIN} and {END}")
    shown = text or "Nothing was measured on a GPU yet."
    options.write.write_text(f"{before}{BEGIN}\n{shown}\n{END}{after}")


if __name__ == "__main__":
    main()
