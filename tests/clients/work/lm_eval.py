"""lm-evaluation-harness: generated answers through both endpoints, and log likelihoods of choices."""

import json
import os
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

URL, MODEL, FOLDER = os.environ["ENGINE_URL"], os.environ["ENGINE_MODEL"], os.environ["ENGINE_FOLDER"]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
output_type: {kind}
{more}
"""


def main() -> None:
    data = Path("data.jsonl").resolve()
    rows = [{"question": f"{n} and 1?", "choices": ["a", "b"], "answer": 0} for n in range(4)]
    data.write_text("\n".join(map(json.dumps, rows)))
    written = (
        'doc_to_target: "a"\ngeneration_kwargs: {until: ["."], max_gen_toks: 8}\nmetric_list: [{metric: exact_match}]'
    )
    chosen = 'doc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\nmetric_list: [{metric: acc}]'
    Path("written.yaml").write_text(TASK.format(name="written", data=data, kind="generate_until", more=written))
    Path("chosen.yaml").write_text(TASK.format(name="chosen", data=data, kind="multiple_choice", more=chosen))
    known = TaskManager(include_path=".", include_defaults=False)
    same = {"model": MODEL, "num_concurrent": 2, "max_retries": 1, "max_length": 1024}
    plain = {**same, "base_url": f"{URL}/v1/completions", "tokenizer_backend": "huggingface", "tokenizer": FOLDER}
    chat = {**same, "base_url": f"{URL}/v1/chat/completions"}
    for model, arguments, names, templated in (
        ("local-completions", plain, ["written", "chosen"], False),
        ("local-chat-completions", chat, ["written"], True),
    ):
        made = lm_eval.simple_evaluate(
            model=model, model_args=arguments, tasks=names, task_manager=known, apply_chat_template=templated,
            bootstrap_iters=0, log_samples=True,
        )  # fmt: skip
        for name in names:
            assert len(made["samples"][name]) == len(rows), made["results"]


if __name__ == "__main__":
    main()
