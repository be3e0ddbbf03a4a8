//! The GPUs of this machine, with the limits that matter for models.

use moeflux_gpu::adapter::{AdapterFacts, adapters};
use serde_json::{Value, json};

use crate::output::quiet::without_noise;
use crate::output::size::binary;

/// Returns the GPUs that `--gpu` can name, in that order.
pub(super) fn here() -> Vec<AdapterFacts> {
    without_noise(adapters).iter().map(|adapter| adapter.facts().clone()).collect()
}

/// Describes a GPU as text.
pub(super) fn text(facts: &AdapterFacts) -> String {
    let mut parts = vec![facts.to_string()];
    parts.extend(facts.memory_bytes.map(|n_bytes| format!("memory {}", binary(n_bytes))));
    parts.push(format!("the host's memory {}", facts.host_memory.name()));
    parts.push(format!("max buffer {}", binary(facts.buffer_bytes_max)));
    parts.push(format!("max binding {}", binary(facts.binding_bytes_max)));
    parts.push(match facts.subgroup_sizes {
        Some((least, most)) if least == most => format!("subgroups of {least}"),
        Some((least, most)) => format!("subgroups of {least} to {most}"),
        None => "no subgroups".to_owned(),
    });
    parts.push(if facts.has_f16 { "f16" } else { "no f16" }.to_owned());
    parts.extend(facts.matrix_edge.map(|edge| format!("matrices of {edge} x {edge}")));
    if let Some(lacks) = &facts.lacks {
        parts.push(format!("cannot be used: {lacks}"));
    }
    parts.join(", ")
}

/// Describes a GPU as JSON.
pub(super) fn json(facts: &AdapterFacts) -> Value {
    json!({
        "name": facts.name,
        "kind": facts.kind.name(),
        "api": facts.api,
        "driver": facts.driver,
        "memory_bytes": facts.memory_bytes,
        "host_memory": facts.host_memory.name(),
        "buffer_bytes_max": facts.buffer_bytes_max,
        "binding_bytes_max": facts.binding_bytes_max,
        "workgroup_bytes_max": facts.workgroup_bytes_max,
        "subgroup_sizes": facts.subgroup_sizes,
        "has_f16": facts.has_f16,
        "matrix_edge": facts.matrix_edge,
        "has_timestamps": facts.has_timestamps,
        "lacks": facts.lacks,
    })
}

#[cfg(test)]
mod tests {
    use moeflux_gpu::adapter::{AdapterKind, HostMemory};

    use super::*;

    #[test]
    fn a_gpu_is_one_line_with_its_limits() {
        let facts = AdapterFacts {
            name: "X 100".into(),
            kind: AdapterKind::Discrete,
            api: "vulkan",
            driver: "x 1.2".into(),
            memory_bytes: Some(80 << 30),
            host_memory: HostMemory::Seen,
            buffer_bytes_max: 4 << 30,
            binding_bytes_max: 2 << 30,
            workgroup_bytes_max: 48 << 10,
            subgroup_sizes: Some((32, 32)),
            has_f16: true,
            matrix_edge: Some(16),
            has_timestamps: true,
            lacks: None,
        };
        let line = "X 100 (discrete, vulkan, x 1.2), memory 80.00 GiB, the host's memory seen, \
                    max buffer 4.00 GiB, max binding 2.00 GiB, subgroups of 32, f16, matrices of \
                    16 x 16";
        assert_eq!(text(&facts), line);
        let other = AdapterFacts {
            memory_bytes: None,
            subgroup_sizes: None,
            has_f16: false,
            matrix_edge: None,
            lacks: Some("too old".into()),
            ..facts
        };
        assert!(text(&other).ends_with("no subgroups, no f16, cannot be used: too old"));
        assert_eq!(json(&other)["lacks"], "too old");
    }
}
