//! Selection of the default GPU.
//!
//! **Invariant:** a software driver is never selected, and every selected card is compared with the
//! CPU before use.

use std::sync::Arc;

use moeflux::provider::config::DeviceMaker;
use moeflux::{Device, Result};

use crate::adapter::{AdapterFacts, AdapterKind, adapters};
use crate::device::Gpu;
use crate::maker::GpuMaker;

/// A GPU, or the reason why there is none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Auto {
    /// Computes instead of the CPU.
    Device(Device),
    /// The CPU computes. Holds the reason, in one line.
    Cpu(String),
}

impl From<Auto> for Option<Device> {
    fn from(auto: Auto) -> Self {
        match auto {
            Auto::Device(device) => Some(device),
            Auto::Cpu(_) => None,
        }
    }
}

/// Returns the first GPU that is expected to be faster than the CPU, for
/// [`moeflux::EngineBuilder::device`]. Before it runs a model, it computes random layers of the
/// same kinds, which takes seconds; opening the model fails if the results differ from the CPU's.
/// As in the command, products of long prompts may round to half precision.
///
/// # Errors
///
/// [`moeflux::Error::Device`] if the driver cannot open the GPU.
pub fn auto() -> Result<Auto> {
    let all = adapters();
    let refused = all.iter().find_map(|it| refusal(it.facts()));
    let Some(adapter) = all.into_iter().find(|it| is_for_auto(it.facts())) else {
        let none = || "this machine has no dedicated GPU".to_owned();
        return Ok(Auto::Cpu(refused.unwrap_or_else(none)));
    };
    let maker = GpuMaker::new(Gpu::open(&adapter)?, None).staging_f16().checked();
    Ok(Auto::Device(Device::from(Arc::new(maker) as Arc<dyn DeviceMaker>)))
}

fn refusal(facts: &AdapterFacts) -> Option<String> {
    let AdapterFacts { name, api, .. } = facts;
    auto_rejection(facts).map(|reason| match reason {
        AutoRejection::Lacks(lacks) => format!("{name} cannot be used: {lacks}"),
        AutoRejection::SecondChoice => {
            format!(
                "{name} has no driver for Vulkan; it is used through {api} only if selected by name"
            )
        }
    })
}

/// Reason why a card is not selected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AutoRejection {
    /// It lacks a required feature, named here.
    Lacks(String),
    /// It has no driver for the preferred API.
    SecondChoice,
}

/// Returns the reason why a card is not selected, or `None` if it is selected or is no card.
#[must_use]
pub fn auto_rejection(facts: &AdapterFacts) -> Option<AutoRejection> {
    match &facts.lacks {
        _ if !is_card(facts) => None,
        Some(lacks) => Some(AutoRejection::Lacks(lacks.clone())),
        None => facts.is_second_choice().then_some(AutoRejection::SecondChoice),
    }
}

/// Returns whether the adapter is expected to be faster than the CPU: a card of its own, or Apple's
/// GPU. Others that share the CPU's memory may be slower.
fn is_card(facts: &AdapterFacts) -> bool {
    matches!(facts.kind, AdapterKind::Discrete | AdapterKind::Virtual) || facts.api == "metal"
}

/// Returns whether the adapter may be selected by default. Its results are checked before use.
#[must_use]
pub fn is_for_auto(facts: &AdapterFacts) -> bool {
    is_card(facts) && !facts.is_second_choice() && facts.lacks.is_none()
}

#[cfg(test)]
mod tests {
    use crate::adapter::HostMemory;

    use super::*;

    #[test]
    fn a_gpu_that_auto_does_not_use_has_a_reason() {
        let card = AdapterFacts {
            name: "X 100".into(),
            kind: AdapterKind::Discrete,
            api: "vulkan",
            driver: String::new(),
            memory_bytes: Some(24 << 30),
            host_memory: HostMemory::Seen,
            buffer_bytes_max: 4 << 30,
            binding_bytes_max: 2 << 30,
            workgroup_bytes_max: 48 << 10,
            subgroup_sizes: None,
            has_f16: true,
            matrix_edge: None,
            has_timestamps: true,
            lacks: None,
        };
        assert!(is_for_auto(&card) && auto_rejection(&card).is_none());
        let lacking = AdapterFacts { lacks: Some("it is too old".into()), ..card.clone() };
        assert_eq!(refusal(&lacking).as_deref(), Some("X 100 cannot be used: it is too old"));
        let other = AdapterFacts { api: "dx12", ..card };
        let expected =
            "X 100 has no driver for Vulkan; it is used through dx12 only if selected by name";
        assert_eq!(refusal(&other).as_deref(), Some(expected));
        // An adapter that shares the CPU's memory is not expected to be selected.
        let shared = AdapterFacts { kind: AdapterKind::Integrated, ..other };
        assert!(auto_rejection(&shared).is_none() && !is_for_auto(&shared));
        let of_apple = AdapterFacts { api: "metal", ..shared };
        assert!(auto_rejection(&of_apple).is_none() && is_for_auto(&of_apple));
    }
}
