"""The GPU example: batches of one tag, a model loaded once per worker, a GPU held by one worker at a time."""

import json
from collections import Counter
from pathlib import Path

from queue_core import NewTask
from tests.support.eventually import eventually
from tests.support.examples import a_copy_of

PROMPTS = 60
BATCH = 16


def test_a_batch_has_one_model_and_a_killed_workers_gpu_is_taken_by_the_next(tmp_path: Path) -> None:
    with a_copy_of("gpu-batches", tmp_path) as example, example.queues() as queues:
        example.up()
        tasks = [NewTask(b"prompt", name=f"{tag}-{n}", tag=tag) for n in range(PROMPTS) for tag in ("small", "large")]
        queues.queue("prompts").add(tasks[:PROMPTS])
        answers = example.folder / "answers.jsonl"
        eventually(answers.exists)
        for worker in example.worker_pids():
            example.kill_worker(worker)
        queues.queue("prompts").add(tasks[PROMPTS:])
        stats = queues.queue("prompts").stats
        eventually(lambda: stats().deleted_total == len(tasks))
        done = [json.loads(line) for line in answers.read_text().splitlines()]
        assert {answer["task"] for answer in done} == {task.name for task in tasks}
        assert all(answer["answer"] == f"{answer['task'].partition('-')[0]} says PROMPT" for answer in done)
        assert BATCH / 2 < max(answer["batch"] for answer in done) <= BATCH
        gpus = {answer["pid"]: answer["gpu"] for answer in done}
        assert len(gpus) > 1
        assert all(gpus[answer["pid"]] == answer["gpu"] for answer in done)
        living = example.worker_pids().values()
        assert len({gpus[pid] for pid in living if pid in gpus}) == len([pid for pid in living if pid in gpus])
        loads = Counter(line for line in example.towline("logs", "gpus").out.splitlines() if "loads" in line)
        assert loads
        assert set(loads.values()) == {1}
