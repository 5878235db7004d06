"""Spark's connector to Kafka, fetched from Maven's central repository when it is needed.

Ivy, which is part of PySpark, fetches the jars, so a machine needs nothing beyond what Spark needs.
They are pinned by checksum and kept in the user's cache directory.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pyspark

from earshot.errors import InvalidParameter, MissingExtra
from earshot.spark.java import cache_directory, find_java
from earshot.spark.network import unanswered

FETCH_S = 300
"""Longest time that fetching may take."""

# Coordinate and SHA-256 of each jar, without those that Spark has itself. The connector's releases
# come to Maven later than Spark's to PyPI; these work with the Spark that Earshot runs on.
CONNECTOR = """
org.apache.commons:commons-pool2:2.13.1
    f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f
org.apache.kafka:kafka-clients:3.9.2
    014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8
org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
    64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705
org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0
    f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767
"""


def connector_jars() -> list[Path]:
    """Return the jars that Spark needs to read and write Kafka, for ``spark.jars``.

    Raises:
        MissingExtra: They are not in the cache and cannot be fetched.
    """
    return fetch_jars(cache_directory() / "kafka", "connector", CONNECTOR)


def check_servers(servers: str) -> None:
    """Refuse Kafka servers that do not answer, for which Spark waits without a word.

    Raises:
        InvalidParameter: None of those named answers.
    """
    why = unanswered(servers)
    if why is not None:
        raise InvalidParameter(
            f"Kafka at {servers} cannot be reached from here: {why}; start it, or give servers "
            f"that Spark's driver reaches"
        )


def fetch_jars(cache: Path, name: str, pinned: str) -> list[Path]:
    """Return the jars of something, pinned by SHA-256, from a cache directory or from Maven.

    Raises:
        MissingExtra: They are not in the cache and cannot be fetched.
    """
    digest = hashlib.sha256(pinned.encode()).hexdigest()[:12]
    directory = cache / f"{name}-{digest}"
    if not directory.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            jars = Path(scratch) / "jars"
            _run_ivy(name, pinned, Path(scratch), jars)
            _check(pinned, jars)
            try:
                jars.rename(directory)
            except OSError:  # another process was faster
                if not directory.exists():
                    raise
    return sorted(directory.glob("*.jar"))


def _pins(pinned: str) -> Iterator[tuple[str, str, str, str]]:
    words = pinned.split()
    for coordinate, checksum in zip(words[::2], words[1::2], strict=True):
        group, artifact, number = coordinate.split(":")
        yield group, artifact, number, checksum


def _run_ivy(name: str, pinned: str, scratch: Path, jars: Path) -> None:
    wanted = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(number)}"
        ' conf="default->master" transitive="false"/>'
        for group, artifact, number, _ in _pins(pinned)
    )
    module = scratch / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0"><info organisation="earshot" module="kafka"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    classpath = Path(pyspark.__file__).parent / "jars"
    command = [
        *(f"{find_java().home}/bin/java", "-cp", *map(str, classpath.glob("ivy-*.jar"))),
        *("org.apache.ivy.Main", "-warn", "-m2compatible", "-cache", f"{scratch}/ivy"),
        *("-ivy", str(module), "-types", "jar", "bundle"),
        *("-retrieve", f"{jars}/[artifact]-[revision].[ext]"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        raise MissingExtra(
            f"the jars of the {name} did not come from Maven within {FETCH_S} s; try again, or "
            f"give jar files in spark.jars"
        ) from None
    if done.returncode:
        problems = [line.strip() for line in done.stdout.splitlines() if "not found" in line]
        raise MissingExtra(
            f"the jars of the {name} cannot be had from Maven: {'; '.join(problems[-3:])}; give "
            f"jar files in spark.jars"
        )


def _check(pinned: str, jars: Path) -> None:
    for _, artifact, number, checksum in _pins(pinned):
        jar = jars / f"{artifact}-{number}.jar"
        if not jar.exists():
            raise MissingExtra(f"{jar.name} did not come from Maven")
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != checksum:
            raise MissingExtra(f"{jar.name} has checksum {found} where {checksum} was expected")
