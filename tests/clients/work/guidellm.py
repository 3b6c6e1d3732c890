"""GuideLLM: its synchronous benchmark of a few requests, none of which fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

URL, MODEL, FOLDER = os.environ["ENGINE_URL"], os.environ["ENGINE_MODEL"], os.environ["ENGINE_FOLDER"]
program = str(Path(sys.executable).with_name("guidellm"))
command = [
    program, "run", "--backend", f"kind=openai_http,target={URL},model={MODEL}", "--profile", "kind=synchronous",
    "--constraint", "kind=max_requests,count=3", "--tokenizer", f"kind=hf_auto,model={FOLDER}",
    "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8", "--output", "kind=json,path=report.json",
    "--disable-console",
]  # fmt: skip
subprocess.run(command, check=True)
report = json.loads(Path("report.json").read_text())
totals = report["benchmarks"][0]["metrics"]["request_totals"]
assert (totals["successful"], totals["errored"]) == (3, 0), totals
