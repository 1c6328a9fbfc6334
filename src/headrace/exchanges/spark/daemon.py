"""The process that Spark's Python workers are forks of, with the modules in it that tasks need.

`spark.python.daemon.module` names it. PySpark's own daemon loads nothing, so that each worker loads
everything: seconds of work before the first row. On a cluster it comes with the code that is shipped, and is
started by whatever Python an executor has: what that lacks is told by the first job, not by this process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path

_INSTALLED = Path("python", "lib", "pyspark.zip")


def _use_installed_modules() -> None:
    """Import PySpark from where it is installed, if that is the one of this Spark.

    Spark puts a zip file with the same modules first, of which nothing can be kept compiled.
    """
    for name in list(sys.path):
        path = Path(name)
        home = path.parents[2] if len(path.parents) > 2 else path
        if home / _INSTALLED == path and (home / "__init__.py").exists() and str(home.parent) in sys.path:
            sys.path.remove(name)


def _load() -> None:
    """Import what tasks need: its only threads are those of libraries that start them again in a fork."""
    import datafusion  # noqa: F401
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet
    import pyspark.worker  # noqa: F401

    import headrace.connectors.filesystem.source
    import headrace.exchanges.spark.rdd
    import headrace.model.fragments  # noqa: F401

    pa.array([None])  # looks for pandas
    # NumPy's own generator of random numbers is there now: each worker needs another seed.
    os.register_at_fork(after_in_child=np.random.seed)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _use_installed_modules()
    from pyspark.daemon import manager

    with contextlib.suppress(ImportError):
        _load()

        from headrace.exchanges.spark.exits import VARIABLE, record_worker_exits

        if exits := os.environ.get(VARIABLE):
            record_worker_exits(Path(exits))
    manager()
