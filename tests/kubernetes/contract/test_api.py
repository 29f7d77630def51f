"""The calls of the runtime, on a real control plane and on its stand-in alike: what comes back, and which error."""

import threading
from collections.abc import Iterator

import pytest

from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.runtimes.kubernetes.access import Access
from orchestrator.runtimes.kubernetes.api import Api, ApiError, Watch
from tests.support.eventually import eventually
from tests.support.kubernetes.cluster import Json
from tests.support.kubernetes.stage import NODE, Stage, running

SELECTOR = "towline.fleet=one"


@pytest.fixture
def api(stage: Stage) -> Iterator[Api]:
    made = Api(Access.of_kubeconfig(stage.kubeconfig))
    yield made
    made.close()


class Followed:
    """A watch that is read by a thread; `events` has the type and the name of each."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.events: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def has(self, kind: str, name: str) -> bool:
        return (kind, name) in self.events

    def _read(self) -> None:
        try:
            for kind, found in self.watch:
                metadata = found["metadata"]
                assert isinstance(metadata, dict)
                self.events.append((kind, metadata.get("name", "")))
        except (ApiError, RuntimeUnavailableError) as error:
            self.error = error


def a_pod(name: str, *, fleet: str = "one") -> Json:
    container = {"name": "worker", "image": "localhost/towline:1", "imagePullPolicy": "Never"}
    labels = {"towline.fleet": fleet, "towline.worker": name}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 35, "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def name_of(found: object) -> str:
    assert isinstance(found, dict)
    return str(found["metadata"]["name"])


def uid_of(found: object) -> str:
    assert isinstance(found, dict)
    return str(found["metadata"]["uid"])


def test_a_pod_is_made_and_read_back_with_its_uid(api: Api, stage: Stage) -> None:
    made = api.create("pods", a_pod("one"))
    found = api.get("pods", "one")
    assert uid_of(made) == uid_of(found) != ""
    assert [pod["metadata"]["name"] for pod in stage.pods()] == ["one"]


def test_a_name_is_given_once(api: Api) -> None:
    api.create("pods", a_pod("one"))
    with pytest.raises(ApiError) as refused:
        api.create("pods", a_pod("one"))
    assert refused.value.is_conflict
    assert refused.value.reason == "AlreadyExists"


def test_a_dry_run_leaves_nothing(api: Api, stage: Stage) -> None:
    assert name_of(api.create("pods", a_pod("one"), is_dry_run=True)) == "one"
    assert stage.pods() == []


def test_an_object_that_is_not_there_is_missing(api: Api) -> None:
    with pytest.raises(ApiError) as refused:
        api.get("pods", "nobody")
    assert refused.value.is_missing
    with pytest.raises(ApiError) as refused:
        api.delete("pods", "nobody")
    assert refused.value.is_missing


def test_a_list_has_every_pod_of_the_fleet_over_many_pages_and_no_other(api: Api, stage: Stage) -> None:
    for number in range(230):
        stage.stranger(f"pod-{number:03}", labels={"towline.fleet": "one" if number else "other"})
    found = api.list("pods", selector=SELECTOR)
    assert [name_of(one) for one in found.items] == [f"pod-{number:03}" for number in range(1, 230)]
    assert found.version


def test_a_list_of_what_is_called_metadata_has_nothing_else(api: Api, stage: Stage) -> None:
    stage.stranger("one", labels={"towline.fleet": "one"})
    (found,) = api.list("pods", selector=SELECTOR, part="metadata").items
    assert name_of(found) == "one"
    assert not found.get("spec")


def test_a_watch_has_what_happens_after_the_list_and_only_of_the_fleet(api: Api, stage: Stage) -> None:
    before = api.list("pods", selector=SELECTOR)
    stage.stranger("foreign", labels={"towline.fleet": "other"})
    api.create("pods", a_pod("one"))
    followed = Followed(api.watch("pods", selector=SELECTOR, version=before.version, seconds=60))
    eventually(lambda: followed.has("ADDED", "one"))
    stage.cluster.bind("one", NODE, stage.namespace)
    stage.cluster.report("one", running(), stage.namespace)
    stage.cluster.remove("one", stage.namespace)
    eventually(lambda: followed.has("DELETED", "one"))
    assert followed.has("MODIFIED", "one")
    assert {name for _, name in followed.events if name} == {"one"}
    followed.watch.close()
    followed.thread.join(10)
    assert not followed.thread.is_alive()


def test_a_watch_ends_by_itself_when_its_time_is_up(api: Api) -> None:
    before = api.list("pods", selector=SELECTOR)
    followed = Followed(api.watch("pods", selector=SELECTOR, version=before.version, seconds=1))
    followed.thread.join(30)
    assert not followed.thread.is_alive()
    assert followed.error is None


def test_a_watch_that_is_silent_for_too_long_is_ended_by_us(api: Api) -> None:
    before = api.list("pods", selector=SELECTOR)
    watch = api.watch("pods", selector=SELECTOR, version=before.version, seconds=60, silent_seconds=0.5)
    followed = Followed(watch)
    followed.thread.join(30)
    assert isinstance(followed.error, RuntimeUnavailableError)


def test_a_pod_without_a_node_goes_at_once(api: Api, stage: Stage) -> None:
    api.create("pods", a_pod("one"))
    api.delete("pods", "one", grace_seconds=35)
    assert stage.pods() == []


def test_a_pod_on_a_node_is_given_its_grace_which_is_shortened_and_never_lengthened(api: Api, stage: Stage) -> None:
    api.create("pods", a_pod("one"))
    stage.cluster.bind("one", NODE, stage.namespace)
    stage.cluster.report("one", running(), stage.namespace)

    def grace() -> object:
        metadata = api.get("pods", "one")["metadata"]
        assert isinstance(metadata, dict)
        return metadata.get("deletionGracePeriodSeconds")

    api.delete("pods", "one")
    assert grace() == 35
    api.delete("pods", "one", grace_seconds=1)
    assert grace() == 1
    api.delete("pods", "one", grace_seconds=60)
    assert grace() == 1


def test_a_delete_of_another_pod_of_the_same_name_is_a_conflict(api: Api, stage: Stage) -> None:
    first = uid_of(api.create("pods", a_pod("one")))
    stage.cluster.remove("one", stage.namespace)
    second = uid_of(api.create("pods", a_pod("one")))
    with pytest.raises(ApiError) as refused:
        api.delete("pods", "one", uid=first)
    assert refused.value.is_conflict
    assert [uid_of(pod) for pod in stage.pods()] == [second]


def test_a_quota_is_told_in_the_apiservers_words(api: Api, stage: Stage) -> None:
    stage.set_quota(1)
    api.create("pods", a_pod("one"))

    def refusal() -> ApiError | None:
        try:
            api.create("pods", a_pod("two"))
        except ApiError as error:
            return error
        return None

    refused = refusal()
    assert refused is not None
    assert refused.status == 403
    assert "exceeded quota: quota, requested: pods=1, used: pods=1, limited: pods=1" in str(refused)


def test_the_anchor_is_read(api: Api, stage: Stage) -> None:
    assert uid_of(api.get("configmaps", "towline-fleet")) == stage.anchor_uid


def test_what_goes_with_the_anchor_is_gone_soon(api: Api, stage: Stage) -> None:
    body = a_pod("one")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "towline-fleet", "uid": stage.anchor_uid}
    body["metadata"]["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": False}]
    api.create("pods", body)
    stage.delete_anchor()
    eventually(lambda: not stage.pods())
    api.create("pods", body | {"metadata": {**body["metadata"], "name": "two"}})  # 201 is no promise
    eventually(lambda: not stage.pods())
