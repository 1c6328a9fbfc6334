"""Groups of rows, by keys and by windows of event time, for aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.api.arguments import check_duration, refuse_id_alone
from headrace.api.expressions import Column, interval
from headrace.api.other_names import missing_attribute
from headrace.api.query_text import QueryText, add_items, expression_text
from headrace.base.call_site import located
from headrace.base.durations import format_duration
from headrace.base.errors import PlanError
from headrace.model.fragments import quote

if TYPE_CHECKING:
    from headrace.api.stream import Stream


class GroupedStream:
    """The groups of a stream; made by `stream.group_by(…)`.

    >>> import headrace as hr
    >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
    >>> sales.group_by("shop").tumble("1m")
    GroupedStream(shop, tumble(1m) of memory_1)
    """

    def __init__(
        self,
        stream: Stream,
        keys: tuple[str | Column, ...],
        window: tuple[str, tuple[timedelta, ...]] | None = None,
    ) -> None:
        self._stream = stream
        self._keys = keys
        self._window = window

    if not TYPE_CHECKING:  # to a type checker a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        keys = [key if isinstance(key, str) else (key.name or key.sql) for key in self._keys]
        if self._window is not None:
            name, lengths = self._window
            keys.append(f"{name}({', '.join(map(format_duration, lengths))})")
        of = repr(self._stream).removeprefix("Stream(").partition(":")[0].rstrip(")")
        return f"GroupedStream({', '.join(keys) or 'all rows'} of {of})"

    @located
    def tumble(self, width: str | timedelta) -> GroupedStream:
        """Divide each group into windows of `width`, one after the other.

        Args:
            width: the length of a window, as `"10s"` or a timedelta. Windows are aligned to 1970-01-01 in
                UTC.

        Returns:
            The groups by key and window. Their result has a column `window`, a struct of `start` and `end`,
            and each of its rows is emitted once, when the watermark reaches the end of the window.

        Raises:
            PlanError: there is a window already.
            ConfigurationError: `width` is not a duration.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> totals = sales.group_by("shop").tumble("1m").aggregate(total="sum(amount)")
        >>> totals.schema.names
        ['shop', 'window', 'total']
        """
        return self._windowed("tumble", width=width)

    @located
    def hop(self, slide: str | timedelta, width: str | timedelta) -> GroupedStream:
        """Divide each group into windows of `width` that begin every `slide`; a row is in several of them.

        Args:
            slide: the distance between the starts of windows.
            width: the length of a window.

        Returns:
            The groups by key and window, as for `tumble`.

        Raises:
            PlanError: there is a window already.
            ConfigurationError: one is not a duration.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.group_by("shop").hop("10s", "1m")
        GroupedStream(shop, hop(10s, 1m) of memory_1)
        """
        return self._windowed("hop", slide=slide, width=width)

    @located
    def session(self, gap: str | timedelta) -> GroupedStream:
        """Divide each group into sessions: rows with less than `gap` between them.

        Args:
            gap: a session ends after this long without rows.

        Returns:
            The groups by key and session, as for `tumble`.

        Raises:
            PlanError: there is a window already.
            ConfigurationError: `gap` is not a duration.

        >>> import headrace as hr
        >>> clicks = hr.Pipeline().source("memory", rows=[{"user": "ann"}])
        >>> clicks.group_by("user").session("30s")
        GroupedStream(user, session(30s) of memory_1)
        """
        return self._windowed("session", gap=gap)

    def _windowed(self, name: str, **lengths: str | timedelta) -> GroupedStream:
        if self._window is not None:
            raise PlanError(
                "these groups have a window already",
                hint="one at most; aggregate, and group the result again",
            )
        parsed = tuple(check_duration(value, option) for option, value in lengths.items())
        return GroupedStream(self._stream, self._keys, (name, parsed))

    @located
    def aggregate(
        self,
        *columns: str | Column | Mapping[str, str | Column],
        id: str | None = None,  # noqa: A002
        **named: str | Column,
    ) -> Stream:
        """Compute a row for each group.

        Args:
            columns: aggregates with their names: `"count(*) AS n"`, `hr.fn.sum("amount").alias("total")`,
                or mappings: `{"n": "count(*)"}`.
            id: what the operator and its state are called; keep it when the pipeline changes.
            named: aggregates by the names of their columns: `n="count(*)"`.

        Returns:
            The stream of the groups: the keys, the `window` if there is one, and the aggregates. Without a
            window it is updating: a row is retracted and emitted again whenever its group changes.

        Raises:
            PlanError: no aggregate is given.
            SqlError: an expression is wrong, or the rows of a window are updating.

        >>> import headrace as hr
        >>> sales = hr.Pipeline().source("memory", rows=[{"shop": "mill", "amount": 3}])
        >>> sales.group_by("shop").aggregate(n="count(*)", highest=hr.fn.max("amount"))
        Stream(aggregate_1: shop TEXT, n BIGINT, highest BIGINT; updating)
        """
        if not columns and not named:
            refuse_id_alone(id, "aggregate")
            raise PlanError(
                "aggregate takes at least one aggregate", hint="such as `aggregate(n='count(*)')`"
            )
        input_names = self._stream._columns("aggregate").names
        text = QueryText("SELECT ")
        checked: list[str] = []
        for key in self._keys:
            sql = expression_text(key, input_names, "group_by")
            checked.append(sql)
            if isinstance(key, Column) and key.name is not None:
                text.add("(").expression(sql).add(f") AS {quote(key.name)}, ")
            else:
                text.expression(sql).add(", ")
        count = len(self._keys)
        if self._window is not None:
            name, lengths = self._window
            text.add(f"{name}({', '.join(map(interval, lengths))}) AS window, ")
            count += 1
        checked += add_items(text, columns, named, input_names, "aggregate")
        text.add(" FROM input")
        if count:
            text.add(f" GROUP BY {', '.join(str(index + 1) for index in range(count))}")
        return self._stream._query("aggregate", text, checked, id=id)
