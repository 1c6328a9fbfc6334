"""User-defined functions in Rust: cargo builds each source into a shared library.

    fn initials(name: &str, limit: Option<i64>) -> Option<String> { … }

The types of the function are its types in SQL. Where an argument is NULL and not an `Option`, the function is
not called and the result is NULL. Crates are named in a comment at the top, as a `[dependencies]` table.
Files for Arroyo, with `use arroyo_udf_plugin::udf` and `#[udf]`, build unchanged. A library is built once and
cached.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.functions.native import Library, NativeFunction, cache_folder
from headrace.functions.source_error import SourceError

_TYPES: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    **{f"i{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    "f32": pa.float32(),
    "f64": pa.float64(),
    "String": pa.string(),
    "&str": pa.string(),
    "Vec<u8>": pa.binary(),
    "&[u8]": pa.binary(),
    "SystemTime": pa.timestamp("ns"),
    "Duration": pa.duration("ns"),
}
_TYPES_TEXT = (
    "bool, i8 to i64, u8 to u64, f32, f64, String, &str, Vec<u8>, &[u8], SystemTime, Duration, "
    "and Option of these"
)
_MASKED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_FUNCTION = re.compile(
    r"(?P<mark>#\[udf\b[^\]]*\]\s*)?(?:pub(?:\([^)]*\))?\s+)?(?P<is_async>async\s+)?fn\s+(?P<name>\w+)\s*"
    r"(?P<generic><[^(]*>)?\s*\("
)
_GROUP = re.compile(r"(?:Option\s*<\s*)?(?:(?:\w+::)*Vec\s*<\s*(?!u8\b)|&\s*(?:'\w+\s+)?\[\s*(?!u8\b))")
_PLUGIN = re.compile(r"use\s+arroyo_udf_plugin::[^;]*;|#\[udf\b[^\]]*\]")
_DEPENDENCIES = re.compile(r"/\*\s*(\[dependencies\].*?)\*/", re.DOTALL)
_COMPLAINT = re.compile(r"^src/user\.rs:(\d+):(\d+): error(?:\[\w+\])?: (.*)$", re.MULTILINE)
_GLUE = Path(__file__).parent / "rust_glue" / "headrace.rs"
_BUILD_SECONDS = 600


@dataclass(frozen=True)
class RustSignature:
    """A function of a Rust source."""

    name: str
    arguments: tuple[tuple[str, pa.DataType], ...]
    nullable: tuple[bool, ...]
    returns: pa.DataType
    rust_types: tuple[str, ...]
    line: int


def read_signatures(source: str) -> list[RustSignature]:
    """The functions of a source: those marked with `#[udf]`; without any, all at its top level."""
    text = _MASKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    matches = [match for match in _FUNCTION.finditer(text) if _depth(text, match.start("name")) == 0]
    marked = [match for match in matches if match["mark"]]
    return [_signature(text, match) for match in marked or matches if match["mark"] or not _is_generic(match)]


def _is_generic(match: re.Match[str]) -> bool:
    """Whether it has type parameters; lifetimes alone do not count."""
    parameters = (match["generic"] or "<>").strip()[1:-1]
    return any(not part.strip().startswith("'") for part in parameters.split(",") if part.strip())


def _depth(text: str, end: int) -> int:
    return text.count("{", 0, end) - text.count("}", 0, end)


def _signature(text: str, match: re.Match[str]) -> RustSignature:
    line = text.count("\n", 0, match.start("name")) + 1
    if _is_generic(match):
        raise SourceError(
            f"`{match['name']}` has types to be chosen", line, hint="SQL needs a function of one type"
        )
    if match["is_async"]:
        raise SourceError(
            f"`{match['name']}` is async",
            line,
            hint="write it without `async`, which is called row by row; what waits for another system is "
            f"written in Python: `async def {match['name']}(…)`",
        )
    close = _closing(text, match.end())
    after = re.match(r"\s*->\s*(.*?)\s*(?:\{|\bwhere\b)", text[close + 1 :], re.DOTALL)
    if after is None:
        raise SourceError(f"`{match['name']}` returns nothing", line, hint="write `-> Type`")
    arguments, nullable, rust_types = [], [], []
    for argument in _split(text[match.end() : close]):
        name, colon, kind = argument.partition(":")
        if not colon:
            raise SourceError(f"`{argument.strip()}` is not an argument that SQL can give", line)
        if _GROUP.match(kind.strip()):
            raise SourceError(
                f"`{match['name']}` is an aggregate: its argument `{name.strip()}` is `{kind.strip()}`, "
                "all values of a group",
                line,
                hint="aggregates are written in Python: a class with @udaf, or "
                f"`def {match['name']}({name.strip()}: list[int]) -> int`",
            )
        plain, is_null = _read(kind, line, f"the argument `{name.strip()}`")
        arguments.append((name.replace("mut ", "").strip(), plain))
        nullable.append(is_null)
        rust_types.append(" ".join(kind.split()))
    if not arguments:
        raise SourceError(f"`{match['name']}` has no arguments", line)
    result = " ".join(after[1].split())
    outcome = re.fullmatch(r"(?:\w+::)*Result\s*<(.*)>", result)
    returns, _ = _read(_split(outcome[1])[0] if outcome else result, line, "the result")
    return RustSignature(match["name"], tuple(arguments), tuple(nullable), returns, tuple(rust_types), line)


def _closing(text: str, start: int) -> int:
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
    raise SourceError("a bracket is never closed", text.count("\n", 0, start) + 1)


def _split(text: str) -> list[str]:
    """The parts between the commas outside brackets."""
    parts, depth = [""], 0
    for char in text.replace("->", "  "):
        depth += {"<": 1, "(": 1, "[": 1, ">": -1, ")": -1, "]": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]


def _read(kind: str, line: int, what: str) -> tuple[pa.DataType, bool]:
    text = re.sub(r"\s+", "", re.sub(r"&\s*'\w+\s+", "&", kind.strip()))
    inner = re.fullmatch(r"(?:\w+::)*Option<(.*)>", text)
    plain = _TYPES.get(re.sub(r"^(\w+::)+", "", inner[1] if inner else text))
    if plain is None:
        raise SourceError(
            f"{what} is `{kind.strip()}`, which SQL has no type for", line, hint=f"use {_TYPES_TEXT}"
        )
    return plain, inner is not None


# -------------------------------------------------------------------------------------------- building


def build(source: str, signatures: Sequence[RustSignature]) -> Path:
    """The shared library of a source, built unless it is in the cache."""
    cargo = shutil.which("cargo")
    glue = _GLUE.read_text(encoding="utf-8")
    exports = _exports(signatures)
    digest = hashlib.sha256(f"{source}\0{glue}\0{exports}".encode()).hexdigest()[:32]
    library = cache_folder() / digest / "librust.so"
    if library.is_file():
        return library
    if cargo is None:
        raise SourceError(
            "there is no `cargo` to build it with",
            hint="install Rust, or build a library elsewhere and write LANGUAGE native AS 'lib.so', 'symbol'",
        )
    library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = _cargo_build(cargo, Path(folder), source, glue=glue, exports=exports)
        staged = library.with_name(f"{library.name}.{os.getpid()}")
        shutil.copyfile(built, staged)
        staged.rename(library)
    return library


def _cargo_build(cargo: str, folder: Path, source: str, *, glue: str, exports: str) -> Path:
    named = _DEPENDENCIES.search(source)
    dependencies = named[1].strip() if named else "[dependencies]"
    manifest = (
        '[package]\nname = "headrace_user"\nversion = "0.1.0"\nedition = "2021"\n\n'
        '[lib]\ncrate-type = ["cdylib"]\n\n[profile.release]\nstrip = true\n\n[workspace]\n\n'
        f"{dependencies}\n"
    )
    user = _PLUGIN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    files = {
        "Cargo.toml": manifest,
        "src/lib.rs": "mod headrace;\nmod user;\n",
        "src/headrace.rs": f"#![allow(clippy::all)]\n{glue}",
        "src/user.rs": f"{user}\n{exports}",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    environment = os.environ | {"CARGO_TARGET_DIR": str(folder / "target"), "CARGO_TERM_COLOR": "never"}
    try:
        done = subprocess.run(
            [cargo, "build", "--release", "--quiet", "--message-format=short"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"cargo has not built it within {_BUILD_SECONDS} seconds") from None
    outputs = [*(folder / "target/release").glob("libheadrace_user.*")]
    libraries = [output for output in outputs if output.suffix in {".so", ".dylib"}]
    if done.returncode == 0 and libraries:
        return libraries[0]
    complaint = _COMPLAINT.search(done.stderr)
    if complaint is not None and int(complaint[1]) <= user.count("\n") + 1:
        raise SourceError(complaint[3], int(complaint[1]), int(complaint[2]))
    raise SourceError(f"cargo could not build it:\n{done.stderr.strip()[-2000:]}")


def _exports(signatures: Sequence[RustSignature]) -> str:
    """The functions of the C interface, in a module that imports those of the user."""
    lines = [
        "#[allow(clippy::all, unused_imports)]",
        "mod headrace_exports {",
        "use super::*;",
        "use crate::headrace::{call, Argument, ArrowArray, ArrowSchema};",
    ]
    for signature in signatures:
        indexes = range(len(signature.arguments))
        arguments = ", ".join(f"Argument::read(&columns[{index}], row)" for index in indexes)
        call = f"{signature.name}({arguments})"
        lines += [
            "#[no_mangle]",
            f'pub unsafe extern "C" fn {symbol_of(signature)}(',
            "_types: *const ArrowSchema, columns: *const ArrowArray,",
            "result_type: *mut ArrowSchema, result: *mut ArrowArray,",
            "message: *mut std::ffi::c_char,",
            ") -> std::ffi::c_int {",
            f"call(columns, result_type, result, message, |columns, row| super::{call})",
            "}",
        ]
    return "\n".join([*lines, "}", ""])


def symbol_of(signature: RustSignature) -> str:
    """The symbol of the function in the library."""
    return f"headrace_{signature.name}"


def define(source: str, names: Mapping[str, str] | None = None) -> list[NativeFunction]:
    """The functions of a source; `names` selects them and gives their names in SQL."""
    signatures = read_signatures(source)
    if names is not None:
        signatures = [signature for signature in signatures if signature.name in names]
    if not signatures:
        raise SourceError("it defines no function", hint="write `fn name(a: i64) -> i64 { … }`")
    library = Library.load(build(source, signatures))
    return [
        NativeFunction.make(
            (names or {}).get(signature.name, signature.name).lower(),
            signature.arguments,
            signature.returns,
            library=library,
            symbol=symbol_of(signature),
            nullable=signature.nullable,
        )
        for signature in signatures
    ]


def load_rust(file: Path) -> list[NativeFunction]:
    """The functions of a Rust file."""
    try:
        return define(file.read_text(encoding="utf-8"))
    except SourceError as error:
        where = str(file) if error.line is None else f"{file}, line {error.line}"
        raise ConfigurationError(error.message, hint=error.hint, where=where) from None


__all__ = ["RustSignature", "build", "define", "load_rust", "read_signatures", "symbol_of"]
