"""load_app("tasks:app"): the user's handlers, or an error that says what to mend."""

import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from queue_core.errors import AppImportError
from queue_core.worker.app import App


def load_app(target: str, *, directory: Path | None = None, also: Path | None = None) -> App:
    """The `App` that `target` names as `module:attribute`.

    Args:
        directory: is put first on the module path; by default where the worker was started, as a program that is
            run with `python tasks.py` would have it.
        also: comes next on the module path: where the settings file is that `directory` has a link to.

    Raises `AppImportError`: no such module, an error inside it, no such attribute, or something that is no `App`.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise AppImportError(
            module=target or "''", reason="not of the form module:attribute", hint="write for example tasks:app"
        )
    if module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise AppImportError(module=module_name, reason="a file, not a module", hint=f"write {meant}:{attribute}")
    root = str((directory or Path.cwd()).resolve())
    if root not in sys.path:
        sys.path.insert(0, root)
    roots = [root]
    if also is not None and str(also.resolve()) != root:
        roots.append(str(also.resolve()))
        if roots[1] not in sys.path:
            sys.path.insert(sys.path.index(root) + 1, roots[1])
    module = _import(module_name, roots)
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise AppImportError(
                module=module_name, reason=f"it has no {attribute!r}", hint=_apps_in(module, module_name)
            )
        found = getattr(found, name)
    if not isinstance(found, App):
        raise AppImportError(
            module=module_name,
            reason=f"{attribute} is a {type(found).__name__}, not an App",
            hint=_apps_in(module, module_name),
        )
    return found


def _import(module_name: str, roots: Sequence[str]) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            places = ", then in ".join(roots)
            raise AppImportError(
                module=module_name, reason="no such module", hint=f"it is looked for in {places} and on PYTHONPATH"
            ) from None
        raise AppImportError(
            module=module_name, reason=_told(error), hint="install what it imports into the worker's environment"
        ) from error
    except (Exception, SystemExit) as error:
        raise AppImportError(
            module=module_name, reason=_told(error), hint=f"`python -c 'import {module_name}'` shows the same"
        ) from error


def _told(error: BaseException) -> str:
    """The error and the last line of the user's own code that it came through."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if len(frames) > 1 else ""
    return f"{where}{type(error).__name__}: {error}"


def _apps_in(module: object, module_name: str) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return "write `app = App()` in it, and @app.task(...) on its handlers"
    return "name one of: " + ", ".join(f"{module_name}:{name}" for name in names)
