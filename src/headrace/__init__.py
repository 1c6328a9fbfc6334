"""Headrace: stream processing for people who already have Spark.

Names are imported when they are first used, so that the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.api import Pipeline, Stream
    from headrace.connectors.blackhole import BlackholeSink
    from headrace.connectors.impulse import ImpulseSource
    from headrace.connectors.memory import MemorySink, MemorySource
    from headrace.connectors.single_file import SingleFileSink, SingleFileSource
    from headrace.connectors.stdout import StdoutSink
    from headrace.errors import (
        ConfigurationError,
        CorruptStateError,
        ExpressionError,
        ExternalError,
        HeadraceError,
        IncompatibleStateError,
        InternalError,
        MissingExtraError,
        OperatorError,
        PlanError,
        SqlError,
        StateError,
        StateInUseError,
        UserError,
        WorkerError,
    )
    from headrace.jobs.progress import Progress, RunResult
    from headrace.keys import hash_key
    from headrace.loading import load_pipeline
    from headrace.operator import (
        ArrowOperator,
        CheckpointBarrier,
        Collector,
        Finish,
        Limit,
        Metrics,
        Offset,
        OperatorContext,
        SourceContext,
        SourceOperator,
        Split,
        TaskInfo,
    )
    from headrace.options import Duration, Options
    from headrace.registry import Registry, register
    from headrace.state.config import (
        TableConfig,
        global_table_config,
        keyed_table_config,
        timestamp_table_config,
    )
    from headrace.state.tables import GlobalTable, KeyedTable, TimeTable
    from headrace.user_functions import async_udf, get_include, load_udfs, native_udf, udaf, udf, udtf
    from headrace.watermarks import END_OF_TIME, IDLE, Watermark

__version__ = "0.1.0"

__all__ = [
    "END_OF_TIME",
    "IDLE",
    "ArrowOperator",
    "BlackholeSink",
    "CheckpointBarrier",
    "Collector",
    "ConfigurationError",
    "CorruptStateError",
    "Duration",
    "ExpressionError",
    "ExternalError",
    "Finish",
    "GlobalTable",
    "HeadraceError",
    "ImpulseSource",
    "IncompatibleStateError",
    "InternalError",
    "KeyedTable",
    "Limit",
    "MemorySink",
    "MemorySource",
    "Metrics",
    "MissingExtraError",
    "Offset",
    "OperatorContext",
    "OperatorError",
    "Options",
    "Pipeline",
    "PlanError",
    "Progress",
    "Registry",
    "RunResult",
    "SingleFileSink",
    "SingleFileSource",
    "SourceContext",
    "SourceOperator",
    "Split",
    "SqlError",
    "StateError",
    "StateInUseError",
    "StdoutSink",
    "Stream",
    "TableConfig",
    "TaskInfo",
    "TimeTable",
    "UserError",
    "Watermark",
    "WorkerError",
    "__version__",
    "async_udf",
    "get_include",
    "global_table_config",
    "hash_key",
    "keyed_table_config",
    "load_pipeline",
    "load_udfs",
    "native_udf",
    "register",
    "timestamp_table_config",
    "udaf",
    "udf",
    "udtf",
]

_HOMES = {
    "ArrowOperator": "headrace.operator",
    "BlackholeSink": "headrace.connectors.blackhole",
    "CheckpointBarrier": "headrace.operator",
    "Collector": "headrace.operator",
    "ConfigurationError": "headrace.errors",
    "CorruptStateError": "headrace.errors",
    "Duration": "headrace.options",
    "END_OF_TIME": "headrace.watermarks",
    "ExpressionError": "headrace.errors",
    "ExternalError": "headrace.errors",
    "Finish": "headrace.operator",
    "GlobalTable": "headrace.state.tables",
    "HeadraceError": "headrace.errors",
    "IDLE": "headrace.watermarks",
    "ImpulseSource": "headrace.connectors.impulse",
    "IncompatibleStateError": "headrace.errors",
    "InternalError": "headrace.errors",
    "KeyedTable": "headrace.state.tables",
    "Limit": "headrace.operator",
    "MemorySink": "headrace.connectors.memory",
    "MemorySource": "headrace.connectors.memory",
    "Metrics": "headrace.operator",
    "MissingExtraError": "headrace.errors",
    "Offset": "headrace.operator",
    "OperatorContext": "headrace.operator",
    "OperatorError": "headrace.errors",
    "Options": "headrace.options",
    "Pipeline": "headrace.api",
    "PlanError": "headrace.errors",
    "Progress": "headrace.jobs.progress",
    "Registry": "headrace.registry",
    "RunResult": "headrace.jobs.progress",
    "SingleFileSink": "headrace.connectors.single_file",
    "SingleFileSource": "headrace.connectors.single_file",
    "SourceContext": "headrace.operator",
    "SourceOperator": "headrace.operator",
    "Split": "headrace.operator",
    "SqlError": "headrace.errors",
    "StateError": "headrace.errors",
    "StateInUseError": "headrace.errors",
    "StdoutSink": "headrace.connectors.stdout",
    "Stream": "headrace.api",
    "TableConfig": "headrace.state.config",
    "TaskInfo": "headrace.operator",
    "TimeTable": "headrace.state.tables",
    "UserError": "headrace.errors",
    "Watermark": "headrace.watermarks",
    "WorkerError": "headrace.errors",
    "async_udf": "headrace.user_functions",
    "get_include": "headrace.user_functions",
    "global_table_config": "headrace.state.config",
    "hash_key": "headrace.keys",
    "keyed_table_config": "headrace.state.config",
    "load_pipeline": "headrace.loading",
    "load_udfs": "headrace.user_functions",
    "native_udf": "headrace.user_functions",
    "register": "headrace.registry",
    "timestamp_table_config": "headrace.state.config",
    "udaf": "headrace.user_functions",
    "udf": "headrace.user_functions",
    "udtf": "headrace.user_functions",
}


if not TYPE_CHECKING:  # to a type checker a module with __getattr__ has every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'headrace' has no attribute '{name}'")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
