/*
[dependencies]
*/
use arroyo_udf_plugin::udf;
use std::time::{Duration, SystemTime};

#[udf]
fn plus_one(x: i64) -> i64 {
    x + 1
}

/// fn not_a_function(in: comment) -> i64 { 1 }
#[udf]
fn initials(name: &str, limit: Option<i64>) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    let letters = name.split(' ').filter_map(|word| word.chars().next());
    Some(letters.take(limit.unwrap_or(9) as usize).collect())
}

#[udf]
pub fn first_word(text: &str) -> &str {
    helper(text)
}

#[udf]
fn no_sevens(x: i64) -> Result<Option<i64>, String> {
    match x {
        7 => Err("no sevens".to_string()),
        8 => Ok(None),
        other => Ok(Some(other)),
    }
}

#[udf]
fn third(x: i64) -> bool {
    let values = [true, false, true];
    values[x as usize]
}

#[udf]
fn later(time: SystemTime, by: Duration) -> SystemTime {
    time + by
}

#[udf]
fn reversed(bytes: Vec<u8>) -> Vec<u8> {
    bytes.into_iter().rev().collect()
}

#[udf]
fn mixed(a: i8, b: u32, c: f32, d: bool) -> f64 {
    a as f64 + b as f64 + c as f64 + if d { 1000.0 } else { 0.0 }
}

#[udf]
fn aborts(x: i64) -> i64 {
    if x > 2 {
        std::process::abort();
    }
    x
}

fn helper(text: &str) -> &str {
    text.split(' ').next().unwrap_or("")
}
