//! Writes objects to a folder until it is killed: the other process of the tests.
//!
//!     prefix_writer FOLDER N_BYTES_MAX
//!
//! Prints a line before the first object, and one for each that is there.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moeflux_prefix::{
    NewObject, ObjectKind, OwnerId, PrefixFolder, PrefixNamespace, Store, StoreLimits, WallClock,
    WriteRefusal,
};
use moeflux_testing::random::Rng;

#[derive(Debug)]
struct Noon;

impl WallClock for Noon {
    fn since_1970(&self) -> Duration {
        Duration::from_hours(12)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("FOLDER is missing")?);
    let n_bytes_max = arguments.next().ok_or("N_BYTES_MAX is missing")?.parse()?;
    let limits = StoreLimits { n_bytes_max, write_bytes_per_day: u64::MAX };
    let store = Store::open(PrefixFolder::new(folder, Arc::new(Noon)), limits)?;
    let mut out = std::io::stdout();
    writeln!(out, "{:?}", store.role())?;
    let namespace = PrefixNamespace::new(b"test", OwnerId::ANONYMOUS);
    // Four conversations that grow in turn.
    for number in 0_u32.. {
        let (conversation, turn) = (number % 4, number / 4);
        let tokens = vec![conversation; 64 * (turn as usize + 1)];
        let kind = if turn % 3 == 2 { ObjectKind::State } else { ObjectKind::Segment };
        let first = if kind == ObjectKind::State { tokens.len() } else { 64 * turn as usize };
        let mut rng = Rng::new(number.into());
        let n_bytes = if number % 16 == 0 { 2_500_000 } else { rng.below(50_000) };
        let payload = rng.bytes(n_bytes);
        let payload_bytes = payload.len() as u64;
        let object =
            NewObject { namespace, kind, tokens: &tokens, first, payload_bytes, saved_ms: 9 };
        match store.begin(&object) {
            Ok(mut writer) => {
                writer.write_all(&payload)?;
                writer.commit()?;
            }
            Err(WriteRefusal::AlreadyThere) => {}
            Err(refusal) => return Err(refusal.into()),
        }
        writeln!(out, "{number}")?;
    }
    Ok(())
}
