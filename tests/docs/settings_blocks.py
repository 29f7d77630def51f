"""Check the YAML of a page: settings of Towline's, manifests of Kubernetes', or any other document."""

from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import yaml

from orchestrator.settings_file import json_schema, parse
from queue_core.config.yaml_document import DocumentError
from tests.support.platform_schemas import KEDA

KUBERNETES: Final = "1.27"
Tree = dict[str, Any]


class SettingsError(AssertionError):
    """Settings that a page shows, and that are refused."""


def settings_keys() -> frozenset[str]:
    """Return the top keys of a settings file."""
    return frozenset(dict(json_schema()["properties"]))  # type: ignore[call-overload]


def check_yaml(text: str, folder: Path, *, earlier: str = "") -> None:
    """Check a block of YAML that is no file.

    Settings are valid as they are, or after what they lack was added: from `earlier`, the page's file, and queues that
    its pools name. Raises `SettingsError`.
    """
    documents = [found for found in yaml.safe_load_all(text) if found is not None]
    for found in documents:
        if isinstance(found, dict) and {"apiVersion", "kind"} <= set(found):
            check_manifest(found)
        elif isinstance(found, dict) and set(found) <= settings_keys():
            _check_settings(text, found, folder, earlier)


def check_manifest(manifest: Tree) -> None:
    """Check an object of Kubernetes', or one of KEDA's that has a schema here. Raises an error of the validator."""
    schema = KEDA.get(manifest["kind"])
    if schema is not None:
        jsonschema_rs.validate(schema, manifest)
    elif "." not in str(manifest["apiVersion"]).partition("/")[0] or ".k8s.io/" in manifest["apiVersion"]:
        import kubernetes_validate  # type: ignore[import-untyped]  # takes over a second, in each process that collects

        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def check_file(text: str, name: str, folder: Path) -> None:
    """Check a settings file as `towline check` does. Raises `SettingsError`."""
    try:
        parse(text, name=name, directory=folder)
    except DocumentError as error:
        raise SettingsError(str(error)) from error


def _check_settings(text: str, found: Tree, folder: Path, earlier: str) -> None:
    complete = _merged(yaml.safe_load(earlier) or {}, found) if earlier else found
    pools = [pool for pool in (complete.get("pools") or {}).values() if isinstance(pool, dict)]
    queues: Tree = {pool["queue"]: {} for pool in pools if "queue" in pool} | (complete.get("queues") or {})
    completed = (complete, {**found, "queues": queues}, {**complete, "queues": queues})
    problems = []
    for candidate in (text, *map(yaml.safe_dump, completed)):
        try:
            return check_file(candidate, "towline.yaml", folder)
        except SettingsError as error:
            problems.append(str(error))
    raise SettingsError(problems[-1])


def _merged(below: Tree, above: Tree) -> Tree:
    """Return `below` with the values of `above`; mappings are merged."""
    return {
        **below,
        **{
            key: _merged(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
            for key, value in above.items()
        },
    }
