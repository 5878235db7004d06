"""Types by name that are imported when they are first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, TypeVar

_T = TypeVar("_T")


class Registry(MutableMapping[str, _T]):
    """Types by name, each given by itself or by where it is: ``earshot.room.module.Type``.

    So whoever uses one of them waits for the kernels of that one alone.
    """

    def __init__(self, homes: Mapping[str, Any]) -> None:
        self._homes = dict(homes)

    def __getitem__(self, name: str) -> _T:
        found = self._homes[name]
        if isinstance(found, str):
            module, _, attribute = found.rpartition(".")
            found = self._homes[name] = getattr(import_module(module), attribute)
        value: _T = found
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __setitem__(self, name: str, value: _T) -> None:
        self._homes[name] = value

    def __delitem__(self, name: str) -> None:
        del self._homes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._homes)

    def __len__(self) -> int:
        return len(self._homes)
