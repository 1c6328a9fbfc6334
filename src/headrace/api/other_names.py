"""What methods of PySpark, Bytewax and Quix Streams are called here, for errors of missing attributes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_FILTER = "write `filter(…)`"
_RENAME = "write `rename(old='new')`"
_SINK = "write `sink('stdout')` with the name of a sink, then `pipeline.start()`"
_SOURCE = "write `source('kafka', …)` with the name of a source"
_UNION = "write `union(other)`"
_AGGREGATE = "write `aggregate(total='sum(amount)')`"
_LAST_ROWS = "a stream may have no end: write `sql('SELECT …')` with ORDER BY and LIMIT"

NAMES: Mapping[str, Mapping[str, str]] = {
    "Pipeline": {
        "input": _SOURCE,
        "read": _SOURCE,
        "readStream": _SOURCE,
        "dataframe": _SOURCE,
        "createDataFrame": "write `source('memory', rows=[…])`",
    },
    "Stream": {
        "where": _FILTER,
        "withColumnRenamed": _RENAME,
        "withColumnsRenamed": _RENAME,
        "toDF": _RENAME,
        "selectExpr": "write `select('a + b AS total')`",
        "agg": f"write `group_by('shop')` first; then {_AGGREGATE}",
        "unionAll": _UNION,
        "unionByName": _UNION,
        "merge": _UNION,
        "concat": _UNION,
        "dropDuplicates": "write `distinct()`",
        "mapInArrow": "write `map(function)`",
        "mapInPandas": "write `map(function)`",
        "write": _SINK,
        "writeStream": _SINK,
        "to_topic": _SINK,
        "foreachBatch": "write a sink: docs/how-to/write-a-sink.md",
        "createOrReplaceTempView": "write `as_table('name')`",
        "columns": "write `schema.names`",
        "printSchema": "write `schema`",
        "collect": "write `show()`, or `sink('memory', name='rows')` and take `run().rows['rows']`",
        "toPandas": "write `sink('memory', name='rows')` and take `run().rows['rows'].to_pandas()`",
        "inspect": "write `show()`",
        "orderBy": _LAST_ROWS,
        "sort": _LAST_ROWS,
        "limit": _LAST_ROWS,
        "count": "write `group_by().aggregate(n='count(*)')`",
    },
    "GroupedStream": {
        "agg": _AGGREGATE,
        "count": "write `aggregate(n='count(*)')`",
        **{name: f"write `aggregate({name}='{name}(amount)')`" for name in ("sum", "avg", "min", "max")},
        "mean": "write `aggregate(mean='avg(amount)')`",
        "first": "write `aggregate(first='first_value(amount)')`",
        "last": "write `aggregate(last='last_value(amount)')`",
    },
    "Column": {
        "getField": "write `field('start')`",
        "getItem": "write `hr.expr('list[1]')`",
        "isin": "write `is_in('a', 'b')`",
        "astype": "write `cast('BIGINT')`",
        "startswith": "write `hr.fn.starts_with('name', hr.lit('a'))`",
        "endswith": "write `hr.fn.ends_with('name', hr.lit('a'))`",
        "contains": "write `hr.fn.contains('name', hr.lit('a'))`",
        "rlike": "write `hr.fn.regexp_like('name', hr.lit('^a'))`",
    },
}


def missing_attribute(owner: object, name: str, columns: Collection[str] = ()) -> AttributeError:
    """The error of an attribute that is not there, with what is to be written instead."""
    kind = type(owner).__name__
    message = f"'{kind}' object has no attribute '{name}'"
    if name in columns:
        return AttributeError(f"{message}: write `hr.col('{name}')` for the column")
    instead = NAMES.get(kind, {}).get(name)
    return AttributeError(message if instead is None else f"{message}: {instead}")
