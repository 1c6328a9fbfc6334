"""Headrace: stream processing for people who already have Spark.

Names are imported when they are first used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

    from headrace.api import sinks, sources
    from headrace.api.connectors import ConfiguredSink, ConfiguredSource
    from headrace.api.expressions import Column, col, expr, fn, lit
    from headrace.api.grouped import GroupedStream
    from headrace.api.live_table import LiveTable
    from headrace.api.loading import load_pipeline
    from headrace.api.pipeline import Pipeline
    from headrace.api.run_options import RunOptions
    from headrace.api.stream import Stream
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
        ReplacedError,
        SqlError,
        StateError,
        StateInUseError,
        UserError,
        WorkerError,
    )
    from headrace.base.keys import hash_key
    from headrace.base.options import Duration, Options
    from headrace.base.waits import Wait
    from headrace.base.watermarks import END_OF_TIME, IDLE, Watermark
    from headrace.connectors.blackhole import BlackholeSink
    from headrace.connectors.impulse import ImpulseSource
    from headrace.connectors.memory import MemorySink, MemorySource
    from headrace.connectors.single_file.sink import SingleFileSink
    from headrace.connectors.single_file.source import SingleFileSource
    from headrace.connectors.stdout import StdoutSink
    from headrace.functions.user import async_udf, get_include, load_udfs, native_udf, udaf, udf, udtf
    from headrace.jobs.handle import PipelineRun, RunStatus
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
    "Column",
    "ConfigurationError",
    "ConfiguredSink",
    "ConfiguredSource",
    "CorruptStateError",
    "Duration",
    "ExpressionError",
    "ExternalError",
    "Finish",
    "GlobalTable",
    "GroupedStream",
    "HeadraceError",
    "ImpulseSource",
    "IncompatibleStateError",
    "InternalError",
    "KeyedTable",
    "Limit",
    "LiveTable",
    "MemorySink",
    "MemorySource",
    "Metrics",
    "MissingExtraError",
    "Offset",
    "OperatorContext",
    "OperatorError",
    "Options",
    "Pipeline",
    "PipelineRun",
    "PlanError",
    "Progress",
    "Registry",
    "ReplacedError",
    "RunOptions",
    "RunResult",
    "RunStatus",
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
    "Wait",
    "Watermark",
    "WorkerError",
    "__version__",
    "async_udf",
    "col",
    "expr",
    "fn",
    "get_include",
    "global_table_config",
    "hash_key",
    "keyed_table_config",
    "lit",
    "load_pipeline",
    "load_udfs",
    "native_udf",
    "register",
    "sinks",
    "sources",
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
    "Column": "headrace.api.expressions",
    "ConfigurationError": "headrace.base.errors",
    "ConfiguredSink": "headrace.api.connectors",
    "ConfiguredSource": "headrace.api.connectors",
    "CorruptStateError": "headrace.base.errors",
    "Duration": "headrace.base.options",
    "END_OF_TIME": "headrace.base.watermarks",
    "ExpressionError": "headrace.base.errors",
    "ExternalError": "headrace.base.errors",
    "Finish": "headrace.model.operator",
    "GlobalTable": "headrace.state.tables",
    "GroupedStream": "headrace.api.grouped",
    "HeadraceError": "headrace.base.errors",
    "IDLE": "headrace.base.watermarks",
    "ImpulseSource": "headrace.connectors.impulse",
    "IncompatibleStateError": "headrace.base.errors",
    "InternalError": "headrace.base.errors",
    "KeyedTable": "headrace.state.tables",
    "Limit": "headrace.model.operator",
    "LiveTable": "headrace.api.live_table",
    "MemorySink": "headrace.connectors.memory",
    "MemorySource": "headrace.connectors.memory",
    "Metrics": "headrace.model.operator",
    "MissingExtraError": "headrace.base.errors",
    "Offset": "headrace.model.operator",
    "OperatorContext": "headrace.model.operator",
    "OperatorError": "headrace.base.errors",
    "Options": "headrace.base.options",
    "Pipeline": "headrace.api.pipeline",
    "PipelineRun": "headrace.jobs.handle",
    "PlanError": "headrace.base.errors",
    "Progress": "headrace.jobs.progress",
    "Registry": "headrace.model.registry",
    "RunOptions": "headrace.api.run_options",
    "RunResult": "headrace.jobs.progress",
    "RunStatus": "headrace.jobs.handle",
    "SingleFileSink": "headrace.connectors.single_file.sink",
    "SingleFileSource": "headrace.connectors.single_file.source",
    "SourceContext": "headrace.model.operator",
    "SourceOperator": "headrace.model.operator",
    "Split": "headrace.model.operator",
    "SqlError": "headrace.base.errors",
    "StateError": "headrace.base.errors",
    "ReplacedError": "headrace.base.errors",
    "StateInUseError": "headrace.base.errors",
    "StdoutSink": "headrace.connectors.stdout",
    "Stream": "headrace.api.stream",
    "TableConfig": "headrace.state.config",
    "TaskInfo": "headrace.model.operator",
    "TimeTable": "headrace.state.tables",
    "UserError": "headrace.base.errors",
    "Wait": "headrace.base.waits",
    "Watermark": "headrace.base.watermarks",
    "WorkerError": "headrace.base.errors",
    "async_udf": "headrace.functions.user",
    "col": "headrace.api.expressions",
    "expr": "headrace.api.expressions",
    "fn": "headrace.api.expressions",
    "get_include": "headrace.functions.user",
    "global_table_config": "headrace.state.config",
    "hash_key": "headrace.base.keys",
    "keyed_table_config": "headrace.state.config",
    "lit": "headrace.api.expressions",
    "load_pipeline": "headrace.api.loading",
    "load_udfs": "headrace.functions.user",
    "native_udf": "headrace.functions.user",
    "register": "headrace.model.registry",
    "timestamp_table_config": "headrace.state.config",
    "udaf": "headrace.functions.user",
    "udf": "headrace.functions.user",
    "udtf": "headrace.functions.user",
}

_MODULES = {"sinks": "headrace.api.sinks", "sources": "headrace.api.sources"}


if not TYPE_CHECKING:  # to a type checker a module with __getattr__ has every name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            value = import_module(_MODULES[name])
        elif name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"module 'headrace' has no attribute '{name}'")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
