//! Does what the name of the input says.

use dora_operator_api::types::{DoraInitResult, DoraResult};
use dora_operator_api::{register_operator, DoraOperator, DoraOutputSender, DoraStatus, Event};
use std::ffi::c_void;

register_operator!(Counter);

struct Counter {
    count: u64,
}

impl Default for Counter {
    fn default() -> Self {
        if std::env::var("CANNOT_START").is_ok() {
            panic!("no camera is connected");
        }
        Counter { count: 0 }
    }
}

impl DoraOperator for Counter {
    fn on_event(&mut self, event: &Event, output: &mut DoraOutputSender) -> Result<DoraStatus, String> {
        match event {
            Event::Input { id, data, metadata } => match *id {
                "count" => {
                    self.count += 1;
                    output.send("count", self.count)?;
                }
                "echo" => output.send("out", data.clone())?,
                "traced" => output.send("out", &*metadata.open_telemetry_context)?,
                "undeclared" => output.send("nowhere", ())?,
                "careless" => drop(output.send("nowhere", ())),
                "fail" => return Err("the disk is full".into()),
                "panic" => panic!("{} is not even", self.count),
                "stop all" => return Ok(DoraStatus::StopAll),
                other => return Err(format!("unexpected input {other}")),
            },
            Event::InputParseError { id, error } => output.send("said", format!("cannot read {id}: {error}"))?,
            Event::InputClosed { id } => output.send("said", format!("closed {id}"))?,
            Event::Error { error } => output.send("said", format!("error {error}"))?,
            Event::Stop => return Ok(DoraStatus::Stop),
            _ => {}
        }
        Ok(DoraStatus::Continue)
    }
}

type Write = unsafe extern "C" fn(*mut c_void, *const u8, usize);

#[no_mangle]
pub unsafe extern "C" fn headrace_snapshot_operator(context: *mut c_void, sink: *mut c_void, write: Write) -> DoraResult {
    let bytes = (*context.cast::<Counter>()).count.to_le_bytes();
    write(sink, bytes.as_ptr(), bytes.len());
    DoraResult::SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn headrace_restore_operator(bytes: *const u8, length: usize) -> DoraInitResult {
    let bytes = std::slice::from_raw_parts(bytes, length);
    let (result, counter) = match bytes.try_into() {
        Ok(bytes) => (DoraResult::SUCCESS, Counter { count: u64::from_le_bytes(bytes) }),
        Err(_) => (DoraResult::from_error(format!("expected 8 bytes, got {length}")), Counter { count: 0 }),
    };
    DoraInitResult { result, operator_context: Box::into_raw(Box::new(counter)).cast() }
}
