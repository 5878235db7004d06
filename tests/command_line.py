"""A directory and the command line, as the tests of commands use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from earshot import cli


class Folder:
    """A directory with files, and the command that is run on them."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.capsys = path, capsys

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Return the exit code of a command, and what it said."""
        self.capsys.readouterr()
        code = cli.main([str(each) for each in arguments])
        out, err = self.capsys.readouterr()
        return code, out, err

    def facts(self, *arguments: object) -> dict[str, Any]:
        """Return what a command tells with ``--json``."""
        code, out, err = self.run(*arguments, "--json")
        assert (code, err) == (0, "")
        facts: dict[str, Any] = json.loads(out)
        return facts

    def refusal(self, *arguments: object) -> str:
        """Return why a command is refused: a wrong option, or something else."""
        code, out, err = self.run(*arguments)
        assert code in (1, 2)
        assert out == ""
        return err

    def names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()}


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file that a command wrote."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]
    if path.suffix == ".csv":
        return pyarrow.csv.read_csv(path).to_pylist()  # type: ignore[no-any-return]
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
