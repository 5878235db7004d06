"""Spark's daemon of Python workers, which has imported what tasks need before it forks any.

A worker is then there in a third of the time. It is for tests, which start dozens of them.
"""

from __future__ import annotations

import importlib

from pyspark.daemon import manager

MODULES = ("pandas", "pyspark.worker", "earshot.spark.build", "earshot.spark.stateful")

if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    manager()
