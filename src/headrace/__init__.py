"""Headrace: stream processing for people who already have Spark.

Names are imported when they are first used, so that the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.api.loading import load_pipeline
    from headrace.api.pipeline import Pipeline, Stream
    from headrace.base.errors import (
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
    from headrace.base.keys import hash_key
    from headrace.base.options import Duration, Options
    from headrace.base.watermarks import END_OF_TIME, IDLE, Watermark
    from headrace.connectors.blackhole import BlackholeSink
    from headrace.connectors.impulse import ImpulseSource
    from headrace.connectors.memory import MemorySink, MemorySource
    from headrace.connectors.single_file.sink import SingleFileSink
    from headrace.connectors.single_file.source import SingleFileSource
    from headrace.connectors.stdout import StdoutSink
    from headrace.functions.user import async_udf, get_include, load_udfs, native_udf, udaf, udf, udtf
    from headrace.jobs.progress import Progress, RunResult
    from headrace.model.operator import (
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
    from headrace.model.registry import Registry, register
    from headrace.state.config import (
        TableConfig,
        global_table_config,
        keyed_table_config,
        timestamp_table_config,
    )
    from headrace.state.tables import GlobalTable, KeyedTable, TimeTable

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
    "ArrowOperator": "headrace.model.operator",
    "BlackholeSink": "headrace.connectors.blackhole",
    "CheckpointBarrier": "headrace.model.operator",
    "Collector": "headrace.model.operator",
    "ConfigurationError": "headrace.base.errors",
    "CorruptStateError": "headrace.base.errors",
    "Duration": "headrace.base.options",
    "END_OF_TIME": "headrace.base.watermarks",
    "ExpressionError": "headrace.base.errors",
    "ExternalError": "headrace.base.errors",
    "Finish": "headrace.model.operator",
    "GlobalTable": "headrace.state.tables",
    "HeadraceError": "headrace.base.errors",
    "IDLE": "headrace.base.watermarks",
    "ImpulseSource": "headrace.connectors.impulse",
    "IncompatibleStateError": "headrace.base.errors",
    "InternalError": "headrace.base.errors",
    "KeyedTable": "headrace.state.tables",
    "Limit": "headrace.model.operator",
    "MemorySink": "headrace.connectors.memory",
    "MemorySource": "headrace.connectors.memory",
    "Metrics": "headrace.model.operator",
    "MissingExtraError": "headrace.base.errors",
    "Offset": "headrace.model.operator",
    "OperatorContext": "headrace.model.operator",
    "OperatorError": "headrace.base.errors",
    "Options": "headrace.base.options",
    "Pipeline": "headrace.api.pipeline",
    "PlanError": "headrace.base.errors",
    "Progress": "headrace.jobs.progress",
    "Registry": "headrace.model.registry",
    "RunResult": "headrace.jobs.progress",
    "SingleFileSink": "headrace.connectors.single_file.sink",
    "SingleFileSource": "headrace.connectors.single_file.source",
    "SourceContext": "headrace.model.operator",
    "SourceOperator": "headrace.model.operator",
    "Split": "headrace.model.operator",
    "SqlError": "headrace.base.errors",
    "StateError": "headrace.base.errors",
    "StateInUseError": "headrace.base.errors",
    "StdoutSink": "headrace.connectors.stdout",
    "Stream": "headrace.api.pipeline",
    "TableConfig": "headrace.state.config",
    "TaskInfo": "headrace.model.operator",
    "TimeTable": "headrace.state.tables",
    "UserError": "headrace.base.errors",
    "Watermark": "headrace.base.watermarks",
    "WorkerError": "headrace.base.errors",
    "async_udf": "headrace.functions.user",
    "get_include": "headrace.functions.user",
    "global_table_config": "headrace.state.config",
    "hash_key": "headrace.base.keys",
    "keyed_table_config": "headrace.state.config",
    "load_pipeline": "headrace.api.loading",
    "load_udfs": "headrace.functions.user",
    "native_udf": "headrace.functions.user",
    "register": "headrace.model.registry",
    "timestamp_table_config": "headrace.state.config",
    "udaf": "headrace.functions.user",
    "udf": "headrace.functions.user",
    "udtf": "headrace.functions.user",
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
