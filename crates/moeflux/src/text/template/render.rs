//! Compiles and renders templates on a separate thread.
//!
//! A template is compiled for each rendering, which is a small part of the work. Its instructions
//! borrow from its text, and compiling anew avoids a structure that holds both. **Invariant:** any
//! recursion that the limits allow fits on [`STACK_BYTES`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use minijinja::machinery::{Instructions, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error as Fault, ErrorKind, Output, Value};

use crate::error::{Error, Result};
use crate::text::limit::TextLimit;
use crate::text::template::check::{CompileError, check};
use crate::text::template::compile::compile;
use crate::text::template::functions::REFUSAL;
use crate::text::template::meter::RenderMeter;
use crate::text::template::values::walk;
use crate::text::template::{FUEL_MAX, OUTPUT_BYTES_MAX, filters, functions};

/// Stack size of the thread. The deepest tree has some 4,000 levels, of a few KB each in an
/// unoptimised build, and the deepest calls take as much; only touched pages take memory.
pub(super) const STACK_BYTES: usize = 32 << 20;

/// Maximum characters of a reason in an error.
const REASON_CHARS_MAX: usize = 300;

/// Work of writing a short value.
const EMIT_WORK: u64 = 40;

/// Checks that a template compiles.
pub(super) fn try_compile(path: &Path, source: &str) -> Result<()> {
    on_thread(path, || instructions(path, source).map(|_| ()))
}

/// Renders a template with the variables that `variables` returns.
pub(super) fn render<F>(
    path: &Path,
    source: &str,
    (work_max, limit): (u64, &TextLimit),
    variables: F,
) -> Result<String>
where
    F: FnOnce(&Arc<RenderMeter>) -> std::result::Result<Value, Fault> + Send,
{
    on_thread(path, || {
        let code = instructions(path, source)?;
        let meter = Arc::new(RenderMeter::new(work_max, limit.clone()));
        write(&code, &meter, variables).map_err(|fault| match limit.cancel.check() {
            Ok(()) => failed(path, (&fault, meter.output_bytes_max())),
            Err(cancelled) => cancelled,
        })
    })
}

fn write<F>(
    code: &Instructions<'_>,
    meter: &Arc<RenderMeter>,
    variables: F,
) -> std::result::Result<String, Fault>
where
    F: FnOnce(&Arc<RenderMeter>) -> std::result::Result<Value, Fault>,
{
    let environment = environment(meter);
    let variables = variables(meter)?;
    let blocks = BTreeMap::new();
    let mut text = String::new();
    let mut output = make_string_output(&mut text);
    eval(&environment, code, variables, &blocks, &mut output, AutoEscape::None)?;
    meter.check()?;
    Ok(text)
}

/// Runs code whose recursion depth depends on a template.
fn on_thread<T: Send>(path: &Path, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat template".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work);
        let thread = thread.map_err(Error::io("start a thread for", path))?;
        let stopped = |_| Err(Error::malformed(path, "chat template: its engine panicked"));
        thread.join().unwrap_or_else(stopped)
    })
}

fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.expect("the default delimiters differ")
}

fn instructions<'s>(path: &'s Path, source: &'s str) -> Result<Instructions<'s>> {
    let refused = |error: CompileError| {
        let CompileError { line, reason } = error;
        Error::malformed(path, format!("chat template, line {line}: {reason}"))
    };
    check(source, syntax()).map_err(refused)?;
    let tree =
        parse(source, "", syntax()).map_err(|fault| failed(path, (&fault, OUTPUT_BYTES_MAX)))?;
    compile(&tree, "", source).map_err(refused)
}

fn environment(meter: &Arc<RenderMeter>) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL_MAX));
    let own = Arc::clone(meter);
    environment.set_formatter(move |output, _state, value| emit(&own, output, value));
    filters::add(&mut environment, meter);
    functions::add(&mut environment, meter);
    environment
}

/// Writes a value to the output or a capture.
fn emit(
    meter: &RenderMeter,
    output: &mut Output<'_>,
    value: &Value,
) -> std::result::Result<(), Fault> {
    meter.work(EMIT_WORK)?;
    if let Some(text) = value.as_str() {
        meter.write(text.len())?;
        return output.write_str(text).map_err(Fault::from);
    }
    meter.work(walk(value).saturating_mul(4))?;
    let mut metered = MeteredOutput { meter, output, limit: None };
    let result = write!(metered, "{value}");
    match metered.limit {
        Some(fault) => Err(fault),
        None => result.map_err(Fault::from),
    }
}

/// Charges the meter for the printed form of a value.
struct MeteredOutput<'a, 'o> {
    meter: &'a RenderMeter,
    output: &'a mut Output<'o>,
    limit: Option<Fault>,
}

impl std::fmt::Write for MeteredOutput<'_, '_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if let Err(fault) = self.meter.write(text.len()) {
            self.limit = Some(fault);
            return Err(std::fmt::Error);
        }
        self.output.write_str(text)
    }
}

/// Builds a one-line error from file, line of the template and reason.
fn failed(path: &Path, (error, output_bytes_max): (&Fault, usize)) -> Error {
    let mut reason = match error.kind() {
        ErrorKind::OutOfFuel => format!("more than {FUEL_MAX} instructions; an endless loop?"),
        ErrorKind::WriteFailure => format!("more than {output_bytes_max} bytes of text"),
        kind => match error.detail() {
            Some(detail) if detail.starts_with(REFUSAL) => detail.to_owned(),
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        // Writing to a string cannot fail.
        let _infallible = write!(reason, ": {cause}");
        source = cause.source();
    }
    let reason: String = reason
        .chars()
        .map(|character| if is_plain(character) { character } else { ' ' })
        .take(REASON_CHARS_MAX)
        .collect();
    let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
    Error::malformed(path, format!("chat template{line}: {reason}"))
}

/// Returns whether a character neither breaks the line nor changes the text direction.
fn is_plain(character: char) -> bool {
    !moeflux_io::is_harmful(character)
}
