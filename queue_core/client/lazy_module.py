"""A module that is imported when a name of it is first used, where most programs use none."""

from importlib import import_module


class LazyModule:
    """A stand-in for a module. Type checkers are shown the module itself, under `TYPE_CHECKING`."""

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> object:
        found = getattr(import_module(self._module), name)
        setattr(self, name, found)
        return found
