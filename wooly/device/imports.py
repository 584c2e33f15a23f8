"""Changes to modules of other packages, made when the script imports them: importing them earlier would cost every script their time."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, change: Callable[[Any], None]) -> None:
    """Call ``change`` with module ``name`` right after its code ran; now if it is imported already."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder(MetaPathFinder):
    """Finds one module, and leaves ``sys.meta_path`` when that is executed; until then its spec may be asked for without an import."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name = name
        self._change = change
        self._asking = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Of that module, with a loader that changes it; None for any other."""
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self._change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec
