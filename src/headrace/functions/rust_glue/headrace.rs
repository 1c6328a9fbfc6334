//! Between Headrace's C interface for functions and plain Rust functions: columns in, a column out.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MESSAGE: usize = 1024;
const NULLABLE: i64 = 2;

#[repr(C)]
pub struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

#[repr(C)]
pub struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

/// One argument: a column of the rows that a function is called for.
pub struct Column<'a>(&'a ArrowArray);

impl<'a> Column<'a> {
    unsafe fn buffer<T>(&self, index: usize) -> *const T {
        *self.0.buffers.add(index) as *const T
    }

    unsafe fn bit(&self, index: usize, row: usize) -> bool {
        *self.buffer::<u8>(index).add(row / 8) >> (row % 8) & 1 == 1
    }

    fn is_null(&self, row: usize) -> bool {
        unsafe { !self.buffer::<u8>(0).is_null() && !self.bit(0, row) }
    }

    fn value<T: Copy>(&self, row: usize) -> T {
        unsafe { *self.buffer::<T>(1).add(row) }
    }

    fn bytes(&self, row: usize) -> &'a [u8] {
        unsafe {
            let ends = self.buffer::<i32>(1);
            let (start, end) = (*ends.add(row) as usize, *ends.add(row + 1) as usize);
            if start == end {
                return &[];
            }
            std::slice::from_raw_parts(self.buffer::<u8>(2).add(start), end - start)
        }
    }
}

/// A type that arguments can have.
pub trait Argument<'a> {
    fn read(column: &Column<'a>, row: usize) -> Self;
}

impl<'a, T: Argument<'a>> Argument<'a> for Option<T> {
    fn read(column: &Column<'a>, row: usize) -> Self {
        if column.is_null(row) {
            None
        } else {
            Some(T::read(column, row))
        }
    }
}

impl<'a> Argument<'a> for bool {
    fn read(column: &Column<'a>, row: usize) -> Self {
        unsafe { column.bit(1, row) }
    }
}

impl<'a> Argument<'a> for &'a [u8] {
    fn read(column: &Column<'a>, row: usize) -> Self {
        column.bytes(row)
    }
}

impl<'a> Argument<'a> for Vec<u8> {
    fn read(column: &Column<'a>, row: usize) -> Self {
        column.bytes(row).to_vec()
    }
}

impl<'a> Argument<'a> for &'a str {
    fn read(column: &Column<'a>, row: usize) -> Self {
        std::str::from_utf8(column.bytes(row)).expect("a text that is not UTF-8")
    }
}

impl<'a> Argument<'a> for String {
    fn read(column: &Column<'a>, row: usize) -> Self {
        <&str>::read(column, row).to_string()
    }
}

impl<'a> Argument<'a> for SystemTime {
    fn read(column: &Column<'a>, row: usize) -> Self {
        let nanoseconds: i64 = column.value(row);
        if nanoseconds < 0 {
            UNIX_EPOCH - Duration::from_nanos(nanoseconds.unsigned_abs())
        } else {
            UNIX_EPOCH + Duration::from_nanos(nanoseconds as u64)
        }
    }
}

impl<'a> Argument<'a> for Duration {
    fn read(column: &Column<'a>, row: usize) -> Self {
        Duration::from_nanos(u64::try_from(column.value::<i64>(row)).expect("a duration below zero"))
    }
}

/// The result while it is made.
pub struct Builder {
    rows: usize,
    nulls: i64,
    valid: Vec<u8>,
    ends: Vec<i32>,
    data: Vec<u8>,
}

impl Builder {
    pub fn new(rows: usize) -> Self {
        Builder { rows: 0, nulls: 0, valid: vec![0; rows / 8 + 1], ends: vec![0], data: Vec::new() }
    }

    fn end_row(&mut self, valid: bool) -> Result<(), String> {
        if valid {
            self.valid[self.rows / 8] |= 1 << (self.rows % 8);
        } else {
            self.nulls += 1;
        }
        self.ends.push(i32::try_from(self.data.len()).map_err(|_| "the texts of a batch take more than 2 GB")?);
        self.rows += 1;
        Ok(())
    }
}

/// A type that results can have.
pub trait Value: Sized {
    const FORMAT: &'static str;
    const BUFFERS: i64;

    fn write(value: Option<Self>, out: &mut Builder) -> Result<(), String>;
}

macro_rules! numbers {
    ($($kind:ty, $format:literal;)*) => {$(
        impl<'a> Argument<'a> for $kind {
            fn read(column: &Column<'a>, row: usize) -> Self {
                column.value(row)
            }
        }

        impl Value for $kind {
            const FORMAT: &'static str = concat!($format, "\0");
            const BUFFERS: i64 = 2;

            fn write(value: Option<Self>, out: &mut Builder) -> Result<(), String> {
                out.data.extend_from_slice(&value.unwrap_or_default().to_ne_bytes());
                out.end_row(value.is_some())
            }
        }
    )*};
}

numbers! {
    i8, "c"; i16, "s"; i32, "i"; i64, "l"; u8, "C"; u16, "S"; u32, "I"; u64, "L"; f32, "f"; f64, "g";
}

impl Value for bool {
    const FORMAT: &'static str = "b\0";
    const BUFFERS: i64 = 2;

    fn write(value: Option<Self>, out: &mut Builder) -> Result<(), String> {
        if out.rows % 8 == 0 {
            out.data.push(0);
        }
        if value == Some(true) {
            out.data[out.rows / 8] |= 1 << (out.rows % 8);
        }
        out.end_row(value.is_some())
    }
}

macro_rules! texts {
    ($($kind:ty, $format:literal;)*) => {$(
        #[allow(clippy::extra_unused_lifetimes)]
        impl<'a> Value for $kind {
            const FORMAT: &'static str = concat!($format, "\0");
            const BUFFERS: i64 = 3;

            fn write(value: Option<Self>, out: &mut Builder) -> Result<(), String> {
                if let Some(given) = &value {
                    out.data.extend_from_slice(given.as_ref());
                }
                out.end_row(value.is_some())
            }
        }
    )*};
}

texts! {
    String, "u"; &'a str, "u"; Vec<u8>, "z"; &'a [u8], "z";
}

impl Value for SystemTime {
    const FORMAT: &'static str = "tsn:\0";
    const BUFFERS: i64 = 2;

    fn write(value: Option<Self>, out: &mut Builder) -> Result<(), String> {
        let nanoseconds = value.map(|time| match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()),
            Err(before) => i64::try_from(before.duration().as_nanos()).map(|n| -n),
        });
        let made = nanoseconds.transpose().map_err(|_| "a time that a TIMESTAMP cannot hold")?;
        <i64 as Value>::write(made, out)
    }
}

impl Value for Duration {
    const FORMAT: &'static str = "tDn\0";
    const BUFFERS: i64 = 2;

    fn write(value: Option<Self>, out: &mut Builder) -> Result<(), String> {
        let nanoseconds = value.map(|length| i64::try_from(length.as_nanos())).transpose();
        <i64 as Value>::write(nanoseconds.map_err(|_| "a duration that is too long")?, out)
    }
}

/// What a function may return: a value, an `Option` of one, or a `Result` of either.
pub trait Outcome {
    type Value: Value;

    fn value(self) -> Result<Option<Self::Value>, String>;
}

impl<T: Value> Outcome for T {
    type Value = T;

    fn value(self) -> Result<Option<T>, String> {
        Ok(Some(self))
    }
}

impl<T: Value> Outcome for Option<T> {
    type Value = T;

    fn value(self) -> Result<Option<T>, String> {
        Ok(self)
    }
}

impl<T: Outcome, E: std::fmt::Display> Outcome for Result<T, E> {
    type Value = T::Value;

    fn value(self) -> Result<Option<T::Value>, String> {
        self.map_err(|error| error.to_string())?.value()
    }
}

struct Kept {
    buffers: [*const c_void; 3],
    _made: Builder,
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    drop(Box::from_raw((*array).private_data as *mut Kept));
    (*array).release = None;
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    (*schema).release = None;
}

unsafe fn hand_over<T: Value>(made: Builder, result_type: *mut ArrowSchema, result: *mut ArrowArray) {
    let (rows, nulls) = (made.rows as i64, made.nulls);
    let mut kept = Box::new(Kept { buffers: [std::ptr::null(); 3], _made: made });
    if nulls > 0 {
        kept.buffers[0] = kept._made.valid.as_ptr() as *const c_void;
    }
    if T::BUFFERS == 3 {
        kept.buffers[1] = kept._made.ends.as_ptr() as *const c_void;
    }
    kept.buffers[T::BUFFERS as usize - 1] = kept._made.data.as_ptr() as *const c_void;
    let kept = Box::into_raw(kept);
    result.write(ArrowArray {
        length: rows,
        null_count: nulls,
        offset: 0,
        n_buffers: T::BUFFERS,
        n_children: 0,
        buffers: (*kept).buffers.as_mut_ptr(),
        children: std::ptr::null_mut(),
        dictionary: std::ptr::null_mut(),
        release: Some(release_array),
        private_data: kept as *mut c_void,
    });
    result_type.write(ArrowSchema {
        format: T::FORMAT.as_ptr() as *const c_char,
        name: c"".as_ptr(),
        metadata: std::ptr::null(),
        flags: NULLABLE,
        n_children: 0,
        children: std::ptr::null_mut(),
        dictionary: std::ptr::null_mut(),
        release: Some(release_schema),
        private_data: std::ptr::null_mut(),
    });
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

fn watch_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        panic::set_hook(Box::new(|info| {
            let text = info.to_string().replace('\n', " ");
            PANIC.with(|said| *said.borrow_mut() = text);
        }));
    });
}

/// Call a function for every row; what is wrong, a panic among it, becomes the message.
///
/// # Safety
/// The pointers are those that the function of the C interface was called with.
pub unsafe fn call<'a, R: Outcome>(
    columns: *const ArrowArray,
    result_type: *mut ArrowSchema,
    result: *mut ArrowArray,
    message: *mut c_char,
    one: impl Fn(&[Column<'a>], usize) -> R,
) -> c_int {
    watch_panics();
    let columns: &'a ArrowArray = &*columns;
    let arguments: Vec<Column<'a>> =
        (0..columns.n_children as usize).map(|index| Column(&**columns.children.add(index))).collect();
    let done = panic::catch_unwind(AssertUnwindSafe(|| {
        let rows = columns.length as usize;
        let mut out = Builder::new(rows);
        for row in 0..rows {
            R::Value::write(one(&arguments, row).value()?, &mut out)?;
        }
        Ok::<Builder, String>(out)
    }));
    let failure = match done {
        Ok(Ok(made)) => {
            hand_over::<R::Value>(made, result_type, result);
            return 0;
        }
        Ok(Err(said)) => said,
        Err(_) => PANIC.with(|said| said.take()),
    };
    let length = failure.len().min(MESSAGE - 1);
    std::ptr::copy_nonoverlapping(failure.as_ptr() as *const c_char, message, length);
    *message.add(length) = 0;
    1
}
