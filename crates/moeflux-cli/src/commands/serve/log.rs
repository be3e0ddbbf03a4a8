//! Log output of the server: stderr, as text or as JSON.

use std::io::{self, Write};

use clap::ValueEnum;
use moeflux::{Error, Result};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::output::print;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Readable text
    Text,
    /// One object per line
    Json,
    /// No log lines
    Off,
}

/// Writes lines to stderr, with text from clients escaped for terminals.
struct LogWriter;

impl Write for LogWriter {
    /// The subscriber writes one event at a time.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        io::stderr().write_all(print::escaped(&text).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Starts logging. For the engine only warnings are shown: its other events are too frequent.
pub(crate) fn begin(format: LogFormat) -> Result<()> {
    let targets = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("moeflux::request", LevelFilter::INFO)
        // Written only on request.
        .with_target("moeflux::prompt", LevelFilter::INFO)
        .with_target("moeflux::server", LevelFilter::INFO)
        .with_target("moeflux_schedule", LevelFilter::INFO);
    let layer = tracing_subscriber::fmt::layer().with_writer(|| LogWriter).with_ansi(false);
    let registry = tracing_subscriber::registry().with(targets);
    let begun = match format {
        LogFormat::Text => registry.with(layer.with_target(false)).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
        LogFormat::Off => return Ok(()),
    };
    begun.map_err(|error| Error::Machine(format!("cannot write log lines: {error}")))
}
