"""Writing a file that must not be there, on stores that are reached through Hadoop.

Arrow's file systems have no conditional write. Hadoop's have: HDFS, ``gs:`` and ``abfs:`` create a
file or fail, and ``s3a:`` does so from Hadoop 3.4.2 on, if it is asked to. The running Spark has
Hadoop and the settings to reach the store.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from earshot.errors import InvalidParameter

CONDITIONAL = "fs.option.create.conditional.overwrite"
"""Asks ``s3a:`` to create a file only if there is none; other file systems always do."""
EXISTS = ("FileAlreadyExistsException", "RemoteFileChangedException", "PathExistsException")
"""What Hadoop says of a file that is there."""


def create_file(uri: str, data: bytes) -> None:
    """Write a file, whole or not at all; of several writers, on any machines, one succeeds.

    Raises:
        FileExistsError: It is there.
        InvalidParameter: The store cannot be written to in this way; says what to do.
    """
    context: Any = SparkContext._active_spark_context
    if context is None:
        raise InvalidParameter(
            f"{uri} can be written only while Spark runs, whose Hadoop keeps two writers apart; "
            f"write to it through a pipeline"
        )
    try:
        path = context._jvm.org.apache.hadoop.fs.Path(uri)
        files = path.getFileSystem(context._jsc.hadoopConfiguration())
        if files.getScheme() == "s3a" and not files.hasPathCapability(path, CONDITIONAL):
            raise InvalidParameter(
                f"{uri}: this Hadoop's s3a: cannot keep two writers apart; use hadoop-aws 3.4.2 or "
                f"newer, and leave fs.s3a.create.conditional.enabled on"
            )
        builder = files.createFile(path).recursive().overwrite(False)
        stream = builder.opt(CONDITIONAL, True).build()
        stream.write(data)
        stream.close()
    except Py4JJavaError as error:
        said = str(error.java_exception.toString())
        if any(name in said for name in EXISTS):
            raise FileExistsError(uri) from None
        raise InvalidParameter(
            f"{uri} cannot be written by Spark's Hadoop: {said.partition(': ')[2][:300] or said}; "
            f"give Spark the store's connector and credentials (docs/cluster.md, Storage)"
        ) from None
