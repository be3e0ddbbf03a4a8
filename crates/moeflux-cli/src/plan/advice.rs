//! What would help: sentences with numbers.
//!
//! **Invariant:** says what a change would give, never that one should be made.

use moeflux::ByteCount;
use moeflux::provider::config::N_ROWS_DEFAULT;

use super::forecast::{Bound, Forecast, Gives, forecast};
use super::machine::PlanMachine;
use crate::needs::Needs;
use crate::size::binary;

/// Budgets in whole units of this are easier to type.
const BUDGET_UNIT_BYTES: u64 = 1 << 20;

pub(super) fn advice(
    needs: &Needs,
    machine: &PlanMachine,
    context: u64,
    forecast: Option<&Forecast>,
) -> Vec<String> {
    let mut advice = Vec::new();
    match (machine.gives(), forecast) {
        (None, _) => advice.push(least(needs, context)),
        (Some(gives), None) => {
            let missing = needs.least_bytes(context).saturating_sub(gives.budget_bytes);
            advice.push(format!(
                "this budget is too small: it needs {} more",
                ByteCount(missing).rounded()
            ));
            advice.push(least(needs, context));
        }
        (Some(_), Some(forecast)) if forecast.n_slots >= needs.n_experts() => {
            advice.push(format!(
                "everything fits: after loading ({:.1} s) nothing is read from the drive",
                forecast.load_seconds
            ));
        }
        (Some(gives), Some(forecast)) => {
            advice.push(least(needs, context));
            advice.extend(more_memory(needs, &gives, context));
            advice.extend(faster_drive(needs, &gives, context, forecast));
        }
    }
    advice
}

fn least(needs: &Needs, context: u64) -> String {
    let least = needs.least_bytes(context).next_multiple_of(BUDGET_UNIT_BYTES);
    format!(
        "the minimum budget is {} ({}): resident weights {}, session {}, workspace \
         {}, {} slots {}",
        ByteCount(least).rounded(),
        binary(least),
        ByteCount(needs.resident_bytes).rounded(),
        ByteCount(needs.session_bytes(context)).rounded(),
        ByteCount(needs.workspace_bytes(N_ROWS_DEFAULT as u64)).rounded(),
        needs.n_slots_min(),
        ByteCount(needs.n_slots_min() * needs.slot_bytes).rounded()
    )
}

fn more_memory(needs: &Needs, gives: &Gives, context: u64) -> Vec<String> {
    let speeds = |bytes: u64| {
        let more = Gives { budget_bytes: bytes, ..*gives };
        let more = forecast(needs, &more, context)?;
        Some(speed_range(&more))
    };
    let mut lines = Vec::new();
    let double = gives.budget_bytes.saturating_mul(2);
    if double < needs.all_bytes(context) {
        let bytes = ByteCount(double).rounded();
        lines.extend(speeds(double).map(|it| format!("twice the memory, {bytes}: {it}")));
    }
    let all = needs.all_bytes(context).next_multiple_of(BUDGET_UNIT_BYTES);
    let missing = ByteCount(all.saturating_sub(gives.budget_bytes)).rounded();
    let all_text = ByteCount(all).rounded();
    lines.extend(
        speeds(all).map(|it| {
            format!("nothing is read from the drive with {all_text}, {missing} more: {it}")
        }),
    );
    lines
}

fn faster_drive(needs: &Needs, gives: &Gives, context: u64, now: &Forecast) -> Option<String> {
    if now.high.bound != Bound::Drive {
        return None;
    }
    let faster = Gives { drive_bytes_per_s: 2.0 * gives.drive_bytes_per_s, ..*gives };
    let faster = forecast(needs, &faster, context)?;
    let gbps = 2.0 * gives.drive_bytes_per_s / 1e9;
    Some(format!("a drive of {gbps:.2} GB/s: {}", speed_range(&faster)))
}

/// `0.35 to 0.41 tokens/s`.
pub(crate) fn speed_range(forecast: &Forecast) -> String {
    let [low, high] = [forecast.low, forecast.high].map(|it| speed(it.tokens_per_s));
    if low == high { format!("{low} tokens/s") } else { format!("{low} to {high} tokens/s") }
}

/// Three digits, as far as they mean anything.
pub(super) fn speed(tokens_per_s: f64) -> String {
    match tokens_per_s {
        100.0.. => format!("{tokens_per_s:.0}"),
        10.0.. => format!("{tokens_per_s:.1}"),
        0.1.. => format!("{tokens_per_s:.2}"),
        _ => format!("{tokens_per_s:.3}"),
    }
}
