"""Spark's schemas, derived from Arrow's and the other way round."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(table: DataFrame) -> pa.Schema:
    """Return the Arrow schema of a table; Spark's timestamps are instants."""
    schema: pa.Schema = to_arrow_schema(table.schema, timezone="UTC")
    return schema


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow batches."""
    return from_arrow_schema(schema)
