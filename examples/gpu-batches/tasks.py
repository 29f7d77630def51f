"""Answers prompts in batches of one model each. A worker holds one GPU, and loads a model once."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from queue_core import App, Task

GPUS = 2

app = App()


@dataclass(frozen=True)
class Model:
    """In place of a model: a batch takes as long as one prompt."""

    name: str

    def answer(self, prompts: list[str]) -> list[str]:
        time.sleep(0.2)
        return [f"{self.name} says {prompt.upper()}" for prompt in prompts]


@dataclass
class Gpu:
    """A GPU and the models that are in its memory."""

    number: int
    models: dict[str, Model] = field(default_factory=dict)

    def model(self, name: str) -> Model:
        """Return a model, loaded at its first use."""
        if name not in self.models:
            print(f"loads {name} into GPU {self.number}")
            time.sleep(0.5)  # in place of reading gigabytes
            self.models[name] = Model(name)
        return self.models[name]


@app.on_start
def gpu() -> Iterator[Gpu]:
    """Take a GPU that no other worker holds. The kernel gives it back when this process ends, however it ends."""
    for number in range(GPUS):
        with Path(f"gpu-{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.environ["CUDA_VISIBLE_DEVICES"] = str(number)  # before torch looks for its devices
            yield Gpu(number)
            return
    raise RuntimeError(f"all {GPUS} GPUs are taken: workers.max in towline.yaml is {GPUS} at most, and surge is 0")


@app.task(queue="prompts", batch=16)
def answer(tasks: list[Task], gpu: Gpu) -> None:
    """Answer prompts of one tag, the name of their model."""
    name = tasks[0].tag or "small"
    answers = gpu.model(name).answer([task.text for task in tasks])
    lines = [
        json.dumps({"task": task.name, "answer": text, "batch": len(tasks), "gpu": gpu.number, "pid": os.getpid()})
        for task, text in zip(tasks, answers, strict=True)
    ]
    with Path("answers.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")
