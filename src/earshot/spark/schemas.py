"""Spark's schemas, derived from Arrow's and the other way round."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(table: DataFrame) -> pa.Schema:
    """Return the Arrow schema of a table; Spark's timestamps are instants.

    Columns that cannot go to Python, such as intervals of months, are left out.
    """
    fields = []
    for field in table.schema:
        with suppress(PySparkException):
            fields += to_arrow_schema(StructType([field]), timezone="UTC")
    return pa.schema(fields)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow batches."""
    return from_arrow_schema(schema)
