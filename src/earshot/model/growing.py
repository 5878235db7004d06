"""Arrays with room to grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class GrowingArray:
    """A NumPy array whose first axis grows, at amortised constant cost per row."""

    def __init__(self, initial: npt.NDArray[Any], fill: Any = 0) -> None:
        self._rows = initial
        self._fill = fill
        self._n = len(initial)

    def __len__(self) -> int:
        return self._n

    @property
    def view(self) -> npt.NDArray[Any]:
        """The rows in use; valid until the next growth."""
        return self._rows[: self._n]

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add rows at the end."""
        start = self._n
        self.resize(start + len(rows))
        self._rows[start : self._n] = rows

    def resize(self, n: int) -> None:
        """Grow to ``n`` rows, new ones filled."""
        if n > len(self._rows):
            larger = np.empty((max(n, 2 * len(self._rows), 64), *self._rows.shape[1:]), self.dtype)
            larger[: self._n] = self._rows[: self._n]
            self._rows = larger
        if n > self._n:
            self._rows[self._n : n] = self._fill
        self._n = n

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._rows.dtype

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to grow included."""
        return int(self._rows.nbytes)
