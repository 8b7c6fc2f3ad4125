"""Runs lm-eval against a server. Scores must be equal for every batch size and number of concurrent
requests."""

import sys

import lm_eval
from lm_eval.tasks import TaskManager

URL = sys.argv[1] + "/v1"
TASKS = TaskManager(include_path="tests/clients/lm_eval", include_defaults=False)


def evaluate(model, path, tasks, batch_size, n_concurrent, **more):
    results = lm_eval.simple_evaluate(
        model=model,
        model_args={
            "model": "model",
            "base_url": f"{URL}/{path}",
            "max_length": 512,
            "num_concurrent": n_concurrent,
            "max_retries": 1,
        },
        tasks=tasks,
        batch_size=batch_size,
        task_manager=TASKS,
        log_samples=True,
        bootstrap_iters=0,
        **more,
    )
    replies = {task: [sample["resps"] for sample in samples] for task, samples in results["samples"].items()}
    return results["results"], replies


def main():
    tasks = ["specconv_generate", "specconv_choice", "specconv_rolling"]
    first = None
    for batch_size, n_concurrent in [(1, 1), (3, 1), (1, 4), (2, 3)]:
        scores, replies = evaluate("local-completions", "completions", tasks, batch_size, n_concurrent)
        first = first or (scores, replies)
        if (scores, replies) != first:
            sys.exit(f"batch size {batch_size}, {n_concurrent} concurrent: {scores}, expected {first[0]}")
    chat, _ = evaluate(
        "local-chat-completions", "chat/completions", ["specconv_chat"], 1, 2, apply_chat_template=True
    )
    for task, values in {**first[0], **chat}.items():
        shown = {name: round(float(x), 4) for name, x in values.items() if isinstance(x, float)}
        print(task, shown)


main()
