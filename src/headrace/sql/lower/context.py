"""The state shared by all parts of lowering: the plan, and the relations that are already in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.problems import Problems
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Fragment, called_functions, plain_schema, quote
from headrace.model.operator import ArrowOperator
from headrace.operators.project import Project
from headrace.sql.bind.catalog import CatalogTable
from headrace.sql.bind.logical import Relation, Scan
from headrace.sql.bind.planning import Planner
from headrace.sql.lower.copartitioning import CoPartitioning
from headrace.sql.lower.derivation import Derivations
from headrace.sql.lower.required_columns import RequiredColumns
from headrace.sql.state_ttl import StateTtl

TIME = pa.field(TIMESTAMP, pa.timestamp("ns"))
TAKEN_BACK = pa.field(RETRACT, pa.bool_())
MAX_DEPTH = 16
"""SELECTs that are nested in one: DataFusion's parser refuses about fifty levels of parentheses."""
LATE = f"{TIMESTAMP}:late"
"""The row as it was read, carried to the windows of a table with a late_table."""


@dataclass(frozen=True)
class LoweredRelation:
    """Where the rows of a relation come from in the plan, and SQL that is still to be applied to them."""

    ports: tuple[Port, ...]
    schema: pa.Schema
    """The columns of the rows at the ports, with event time and, if they are updating, retractions."""
    sql: str | None = None
    """A SELECT over `input`, the rows at the ports."""
    depth: int = 0
    """How many SELECTs are nested in `sql`."""
    late_of: CatalogTable | None = None
    """The table whose late rows are wanted; rows carry what they were when they were read."""

    def select(self, items: Sequence[str], *, where: str = "") -> LoweredRelation:
        """The same rows with these SELECT items."""
        inner = "input" if self.sql is None else f"({self.sql})"
        return replace(self, sql=f"SELECT {', '.join(items)} FROM {inner}{where}", depth=self.depth + 1)


@dataclass
class LoweringContext:
    """A plan that relations are added to, each once."""

    builder: PlanBuilder
    planner: Planner
    problems: Problems
    ttl: StateTtl
    """How long updating operators keep their state."""
    lower_new: Callable[[LoweringContext, Relation], LoweredRelation]
    """Adds the operators of a relation that was not lowered before."""
    shared: Mapping[Relation, Relation]
    """Each relation → the one that stands for all that are like it."""
    required: RequiredColumns
    copartitioning: CoPartitioning
    names: dict[Relation, str]
    """Relations after which their operators, and those of what they are made of, are called."""
    within: str = "query"
    late: dict[CatalogTable, list[LoweredRelation]] = field(default_factory=dict)
    """The late rows of tables, as the windows put them out."""
    sources: dict[CatalogTable, Port] = field(default_factory=dict)
    _lowered: dict[Relation, LoweredRelation] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)
    _derivations: Derivations = field(default_factory=Derivations)
    _current: Relation | None = None
    """The relation whose operators are being added."""

    # ------------------------------------------------------------------------------------ relations

    def lower(self, relation: Relation) -> LoweredRelation:
        """The rows of a relation; its operators are added at the first call."""
        relation = self.shared.get(relation, relation)
        if relation not in self._lowered:
            if isinstance(relation, Scan):
                self.names[relation] = relation.table.name
            with self._named_after(relation):
                lowered = self.lower_new(self, relation)
                if self.required.readers.get(relation, 0) > 1:
                    lowered = self.apply_sql(lowered)
            self._lowered[relation] = lowered
        return self._lowered[relation]

    def rows(self, relation: Relation) -> LoweredRelation:
        """The rows of a relation, with no SQL left to be applied to them."""
        relation = self.shared.get(relation, relation)
        with self._named_after(relation):
            return self.apply_sql(self.lower(relation))

    def emitted(self, relation: Relation) -> LoweredRelation:
        """The rows of a relation as they leave the program: without what only its windows need."""
        rows = self.lower(relation)
        if rows.late_of is None:
            return rows
        names = [*self.columns(relation), TIMESTAMP, *([RETRACT] if relation.updating else [])]
        return replace(rows.select([quote(name) for name in names]), late_of=None)

    def apply_sql(self, rows: LoweredRelation) -> LoweredRelation:
        """Add the projection that is still to be applied."""
        if rows.sql is None:
            return rows
        fragment = self.fragment(rows.sql, {"input": rows.schema})
        port = self.add(Project(fragment), [rows.ports], "project")
        return LoweredRelation((port,), fragment.output, late_of=rows.late_of)

    def columns(self, relation: Relation) -> list[str]:
        """The columns of a relation that anything reads."""
        required = self.required.columns(relation)
        return [name for name in relation.columns.names if name in required]

    def batch_schema(self, relation: Relation, names: Sequence[str] | None = None) -> pa.Schema:
        """The columns of a relation's batches: those that anything reads, event time, retractions."""
        fields = [
            relation.columns.field(name) for name in (self.columns(relation) if names is None else names)
        ]
        return plain_schema(pa.schema([*fields, TIME, *([TAKEN_BACK] if relation.updating else [])]))

    def result(self, relation: Relation, port: Port) -> LoweredRelation:
        """The rows of an operator that emits only the columns that are read."""
        return LoweredRelation((port,), self.batch_schema(relation))

    # ------------------------------------------------------------------------------------ operators

    def add(self, operator: ArrowOperator, inputs: Sequence[Sequence[Port]], kind: str) -> Port:
        """Add an operator; its id says whose it is, and what it does."""
        derivation = "" if self._current is None else self._derivations.of(self._current)
        return self.builder.add(
            "operator", operator, inputs, id=self.operator_id(kind), derivation=derivation
        )

    def fragment(self, sql: str, inputs: dict[str, pa.Schema]) -> Fragment:
        """SQL over inputs, with the functions of the user that it calls."""
        return Fragment(sql, inputs, functions=called_functions(self.planner.functions, [sql]))

    def operator_id(self, kind: str) -> str:
        """An id for an operator: after the relation that is lowered, and what the operator does."""
        return self._unused_id(f"{_plain(self.within)}.{kind}")

    def node_id(self, name: str) -> str:
        """An id for a node, made of a name, that no other node has."""
        return self._unused_id(_plain(name))

    def _unused_id(self, base: str) -> str:
        candidate, number = base, 1
        while candidate in self._ids:
            number += 1
            candidate = f"{base}_{number}"
        self._ids.add(candidate)
        return candidate

    @contextmanager
    def _named_after(self, relation: Relation) -> Iterator[None]:
        before = self.within, self._current
        self.within, self._current = self.names.get(relation, self.within), relation
        try:
            yield
        finally:
            self.within, self._current = before


def shuffle(ports: Sequence[Port], keys: Sequence[str]) -> tuple[Port, ...]:
    """The same ports, with rows of equal keys together."""
    return tuple(replace(port, kind="shuffle", keys=tuple(keys)) for port in ports)


def without(schema: pa.Schema, name: str) -> pa.Schema:
    """The other columns."""
    index = schema.get_field_index(name)
    return schema if index < 0 else schema.remove(index)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
