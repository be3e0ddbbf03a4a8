//! The speed of a computing device: measured by `moeflux doctor` and used by `moeflux plan`.
//!
//! **Invariant:** every rate is above zero and finite, every time finite: a file with other values
//! is ignored.

use serde_json::{Value, json};

/// The speed of a CPU or a GPU: rates, and times that a token or a layer takes in addition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ComputeProfile {
    /// Bytes of quantised weights that an answer reads, per second.
    pub(crate) answer_bytes_per_s: f64,
    /// The same for FP8.
    pub(crate) answer_float_bytes_per_s: f64,
    /// The same for unquantised weights.
    pub(crate) answer_plain_bytes_per_s: f64,
    /// Additional time for each token: to submit a step and to read back its choice.
    pub(crate) step_s: f64,
    /// Additional time for each layer of a token.
    pub(crate) layer_s: f64,
    /// Additional time for each layer whose experts are streamed.
    pub(crate) streamed_layer_s: f64,
    /// Bytes of weights that are read at the start of a prompt's step, per second.
    pub(crate) prompt_bytes_per_s: f64,
    /// Multiplications and additions with quantised weights in a prompt, per second.
    pub(crate) prompt_operations_per_s: f64,
    /// The same with other weights, and for attention and recurrent states.
    pub(crate) prompt_float_operations_per_s: f64,
    /// Bytes of experts in host memory that a GPU reads for an answer, per second.
    pub(crate) far_bytes_per_s: f64,
    /// The same for a prompt, in addition to the time for experts on the card.
    pub(crate) far_prompt_bytes_per_s: f64,
}

/// The field names in a file.
const NAMES: [&str; 11] = [
    "answer_bytes_per_s",
    "answer_float_bytes_per_s",
    "answer_plain_bytes_per_s",
    "step_s",
    "layer_s",
    "streamed_layer_s",
    "prompt_bytes_per_s",
    "prompt_operations_per_s",
    "prompt_float_operations_per_s",
    "far_bytes_per_s",
    "far_prompt_bytes_per_s",
];

impl ComputeProfile {
    /// Returns the fields for a file.
    pub(crate) fn json(&self) -> Value {
        json!({
            "answer_bytes_per_s": self.answer_bytes_per_s,
            "answer_float_bytes_per_s": self.answer_float_bytes_per_s,
            "answer_plain_bytes_per_s": self.answer_plain_bytes_per_s,
            "step_s": self.step_s,
            "layer_s": self.layer_s,
            "streamed_layer_s": self.streamed_layer_s,
            "prompt_bytes_per_s": self.prompt_bytes_per_s,
            "prompt_operations_per_s": self.prompt_operations_per_s,
            "prompt_float_operations_per_s": self.prompt_float_operations_per_s,
            "far_bytes_per_s": self.far_bytes_per_s,
            "far_prompt_bytes_per_s": self.far_prompt_bytes_per_s,
        })
    }

    /// Reads the fields from a file.
    pub(crate) fn of_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name)?.as_f64().filter(|it| it.is_finite());
        let mut numbers = [0.0; NAMES.len()];
        for (number_of, name) in numbers.iter_mut().zip(NAMES) {
            let found = number(name)?;
            let is_time = !name.ends_with("per_s");
            *number_of = Some(found).filter(|it| if is_time { *it >= 0.0 } else { *it >= 1.0 })?;
        }
        let [answer, answer_float, answer_plain, step, layer, rest @ ..] = numbers;
        let [streamed_layer, prompt, operations, float, far, far_prompt] = rest;
        Some(Self {
            answer_bytes_per_s: answer,
            answer_float_bytes_per_s: answer_float,
            answer_plain_bytes_per_s: answer_plain,
            step_s: step,
            layer_s: layer,
            streamed_layer_s: streamed_layer,
            prompt_bytes_per_s: prompt,
            prompt_operations_per_s: operations,
            prompt_float_operations_per_s: float,
            far_bytes_per_s: far,
            far_prompt_bytes_per_s: far_prompt,
        })
    }

    /// Returns the profile of a device that is `factor` times as fast.
    pub(crate) fn times(&self, factor: f64) -> Self {
        Self {
            answer_bytes_per_s: self.answer_bytes_per_s * factor,
            answer_float_bytes_per_s: self.answer_float_bytes_per_s * factor,
            answer_plain_bytes_per_s: self.answer_plain_bytes_per_s * factor,
            step_s: self.step_s / factor,
            layer_s: self.layer_s / factor,
            streamed_layer_s: self.streamed_layer_s / factor,
            prompt_bytes_per_s: self.prompt_bytes_per_s * factor,
            prompt_operations_per_s: self.prompt_operations_per_s * factor,
            prompt_float_operations_per_s: self.prompt_float_operations_per_s * factor,
            far_bytes_per_s: self.far_bytes_per_s * factor,
            far_prompt_bytes_per_s: self.far_prompt_bytes_per_s * factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: ComputeProfile = ComputeProfile {
        answer_bytes_per_s: 3e10,
        answer_float_bytes_per_s: 4e10,
        answer_plain_bytes_per_s: 5e10,
        step_s: 0.0,
        layer_s: 0.0,
        streamed_layer_s: 1e-4,
        prompt_bytes_per_s: 1e10,
        prompt_operations_per_s: 1e12,
        prompt_float_operations_per_s: 1e11,
        far_bytes_per_s: 2e10,
        far_prompt_bytes_per_s: 2e10,
    };

    #[test]
    fn a_written_profile_loads_and_an_invalid_one_does_not() {
        assert_eq!(ComputeProfile::of_json(&PROFILE.json()), Some(PROFILE));
        for (name, bad) in [
            ("answer_bytes_per_s", json!(0)),
            ("layer_s", json!(-1e-9)),
            ("prompt_operations_per_s", json!("fast")),
            ("far_bytes_per_s", Value::Null),
        ] {
            let mut file = PROFILE.json();
            file[name] = bad;
            assert_eq!(ComputeProfile::of_json(&file), None, "{name}");
        }
    }
}
