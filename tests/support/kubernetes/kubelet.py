"""A scheduler and a kubelet for Pods that run nothing: each gets a node, runs, and ends as soon as it is told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.kubernetes.cluster import Json, RefusedError
from tests.support.kubernetes.stage import NODE, Stage, ended, running

POLL_SECONDS = 0.2


class Kubelet:
    """Reports for every Pod of a stage, from a thread."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            with suppress(OSError, RefusedError):
                for pod in self._stage.pods():
                    with suppress(RefusedError):  # it went meanwhile
                        self._report(pod)

    def _report(self, pod: Json) -> None:
        name, cluster, namespace = str(pod["metadata"]["name"]), self._stage.cluster, self._stage.namespace
        if "deletionTimestamp" in pod["metadata"]:
            cluster.report(name, ended(0), namespace)
            cluster.remove(name, namespace)
        elif name not in self._seen:
            self._seen.add(name)
            cluster.bind(name, NODE, namespace)
            cluster.report(name, running(), namespace)


@contextmanager
def a_kubelet(stage: Stage) -> Iterator[Kubelet]:
    """Report for the Pods of a stage while the context is open."""
    kubelet = Kubelet(stage)
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.end()
