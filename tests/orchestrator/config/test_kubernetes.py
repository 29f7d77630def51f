"""The settings of `runtime: {kubernetes: ...}`: what is refused, and with which words."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.config.pools import PoolSpec, parse_pools
from orchestrator.settings_file import parse
from queue_core.config.yaml_document import DocumentError

GOOD: dict[str, Any] = {"queue": "thumbs", "app": "tasks:app", "slo": "30s"}
FILE = (
    "queues: {thumbs: {}}\npools:\n  resize: {queue: thumbs, app: 'tasks:app', slo: 30s, runtime: {kubernetes: %s}}\n"
)


def a_pod_pool(name: str = "resize", **settings: Any) -> PoolSpec:
    return parse_pools({name: {**GOOD, "runtime": {"kubernetes": {"image": "thumbs:1", **settings}}}})[name]


def mistakes_in(settings: dict[str, Any], name: str = "resize") -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        a_pod_pool(name, **settings)
    return {".".join(map(str, one.path)).partition(".kubernetes.")[2]: one.message for one in caught.value.problems}


@pytest.mark.parametrize(
    ("settings", "place", "said"),
    [
        pytest.param({"memry": "1GiB"}, "memry", "unknown setting, did you mean 'memory'?", id="unknown"),
        pytest.param({"memory": "1MiB"}, "memory", "must be at least 6MiB: 1MiB", id="too little memory"),
        pytest.param({"cpus": "1"}, "cpus", "'1': write a number of processors such as 2 or 0.5", id="cpus as text"),
        pytest.param({"gpus": 65}, "gpus.count", "must be at most 64: 65", id="too many devices"),
        pytest.param({"max_pending": 0}, "max_pending", "must be at least 1: 0", id="nothing may be pending"),
        pytest.param({"image_patience": "2h"}, "image_patience", "must be at most 1h: 2h", id="too patient"),
        pytest.param(
            {"labels": {"towline.fleet": "x"}},
            "labels.towline.fleet",
            "towline.fleet: labels that begin with towline. are the supervisor's own; name it otherwise",
            id="our labels",
        ),
        pytest.param(
            {"template": {"spec": {"containers": [{"image": "x"}]}}},
            "template",
            "spec.containers: write a list, each with a name: they are merged by it",
            id="a template's container without a name",
        ),
        pytest.param(
            {"template": {"containers": []}},
            "template",
            "containers: a template has metadata and spec, as a PodTemplate has; put it under spec",
            id="a template that is a spec",
        ),
    ],
)
def test_a_mistake_says_what_the_value_and_the_limit(settings: dict[str, Any], place: str, said: str) -> None:
    assert mistakes_in(settings) == {place: said}


def test_a_pools_name_fits_into_a_pods_name() -> None:
    assert a_pod_pool("a" * 48).name == "a" * 48
    with pytest.raises(ConfigError, match="at most 48 characters") as caught:
        a_pod_pool("a" * 49)
    assert "it has 49" in str(caught.value)


def test_one_file_may_have_pools_of_every_runtime() -> None:
    pools = parse_pools(
        {
            "here": GOOD,
            "boxed": {**GOOD, "runtime": {"docker": {"image": "thumbs:1"}}},
            "away": {**GOOD, "runtime": {"kubernetes": {"image": "thumbs:1"}}},
        }
    )
    assert {name: pool.runtime_kind for name, pool in pools.items()} == {
        "here": "process",
        "boxed": "docker",
        "away": "kubernetes",
    }


def test_an_image_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"needs an image at least: write \{kubernetes: \{image: NAME\}\}"):
        parse_pools({"resize": {**GOOD, "runtime": "kubernetes"}})


def test_a_number_of_devices_is_that_of_the_usual_ones() -> None:
    known = a_pod_pool(gpus=2).runtime.kubernetes
    assert known is not None
    assert known.gpus is not None
    assert (known.gpus.resource, known.gpus.count) == ("nvidia.com/gpu", 2)


def test_new_workers_are_made_for_another_image_and_not_for_another_patience() -> None:
    known = a_pod_pool()
    assert a_pod_pool(max_pending=5, image_patience="5s").digest() == known.digest()
    assert a_pod_pool(image="thumbs:2").digest() != known.digest()


def test_a_template_is_read_from_its_file_and_a_change_of_it_makes_new_workers(tmp_path: Path) -> None:
    template = tmp_path / "worker-pod.yaml"

    def digest_with(text: str) -> str:
        template.write_text(text)
        project = parse(FILE % "{image: 'x:1', template: worker-pod.yaml}", name="towline.yaml", directory=tmp_path)
        known = project.pools["resize"].runtime.kubernetes
        assert known is not None
        assert "spec" in known.pod_template
        return project.pools["resize"].digest()

    pod = "apiVersion: v1\nkind: PodTemplate\ntemplate: {spec: {dnsPolicy: %s}}\n"
    assert digest_with(pod % "Default") != digest_with(pod % "ClusterFirst")


def test_a_template_that_is_not_there_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"towline.yaml:3:.*template.*gone.yaml: the template can't be read"):
        parse(FILE % "{image: 'x:1', template: gone.yaml}", name="towline.yaml", directory=tmp_path)
