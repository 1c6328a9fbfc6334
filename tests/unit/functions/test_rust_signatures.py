"""What SQL learns from the source of a Rust function, without building it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.functions.rust import read_signatures
from headrace.functions.source_error import SourceError

SOURCE = """
use std::collections::HashMap;

/// fn in_a_comment(x: Nothing) -> i64 { 1 }
const TEXT: &str = "fn in_a_text(x: Nothing) -> i64 {";

pub(crate) fn first<'a>(mut text: &'a str, most: Option< i64 >) -> Option<&'a str> { None }

fn generic<T: Into<i64>>(x: T) -> i64 { x.into() }

mod inner { pub fn hidden(x: i64) -> i64 { x } }

fn second(a: Vec<u8>, b: std::time::SystemTime,
          c: bool) -> std::result::Result<Option<f32>, Box<dyn std::error::Error>>
{
    fn nested(x: HashMap<i64, i64>) -> i64 { 1 }
    Ok(None)
}
"""


def test_functions_at_the_top_level_are_read_with_their_types() -> None:
    first, second = read_signatures(SOURCE)
    assert (first.name, first.arguments, first.nullable, first.returns) == (
        "first",
        (("text", pa.string()), ("most", pa.int64())),
        (False, True),
        pa.string(),
    )
    assert second.arguments == (("a", pa.binary()), ("b", pa.timestamp("ns")), ("c", pa.bool_()))
    assert second.returns == pa.float32()
    assert second.line == 13


def test_marked_functions_are_the_only_ones() -> None:
    plain = "fn two(x: i64) -> i64 { x }"
    source = f"#[udf]\nfn one(x: i64) -> i64 {{ x }}\n {plain}\n#[udf] fn three(x: u8) -> u8 {{ x }}"
    assert [one.name for one in read_signatures(source)] == ["one", "three"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("fn f(x: i128) -> i64 { 1 }", "the argument `x` is `i128`, which SQL has no type for"),
        ("fn f(x: i64) -> Vec<i64> { 1 }", "the result is `Vec<i64>`, which SQL has no type for"),
        ("fn f(x: i64) { }", "`f` returns nothing"),
        ("fn f() -> i64 { 1 }", "`f` has no arguments"),
        ("fn f(self) -> i64 { 1 }", "`self` is not an argument"),
        ("async fn f(x: i64) -> i64 { 1 }", "`f` is async"),
        ("fn f(x: Vec<i64>) -> i64 { 1 }", "`f` is an aggregate: its argument `x` is `Vec<i64>`"),
        ("fn f(x: &[Option<f64>]) -> i64 { 1 }", "`f` is an aggregate"),
        ("#[udf]\nfn f<T>(x: T) -> i64 { 1 }", "`f` has types to be chosen"),
        ("fn f(x: i64", "a bracket is never closed"),
    ],
)
def test_what_sql_cannot_call_is_an_error_with_its_line(source: str, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        read_signatures(f"\n{source}")
    assert said in caught.value.message
    assert caught.value.line == source.count("\n") + 2
