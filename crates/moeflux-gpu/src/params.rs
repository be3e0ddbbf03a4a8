//! Kernel parameters: plain structs of 4-byte fields, passed to the device as words.
//!
//! **Invariant:** a struct has the same layout in WGSL, word for word, because the WGSL struct is
//! generated from the same list: see [`Params::WGSL`].

/// Layout of head values in the workspace, in values. Row `r`, head `h`, column `c` is at
/// `first + r * row_stride + h * head_stride + c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// Offset of head 0 of row 0.
    pub(crate) first: u32,
    /// Distance between rows; a multiple of 4.
    pub(crate) row_stride: u32,
    /// Distance between heads.
    pub(crate) head_stride: u32,
}

impl View {
    /// A placeholder that refers to no buffer.
    pub(crate) const NOWHERE: Self = Self { first: 0, row_stride: 0, head_stride: 0 };
}

/// Converts an offset or count, which fits 32 bits because its buffer does.
pub(crate) fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("places in a buffer fit 32 bits")
}

/// Stands for an absent value in parameters.
pub(crate) const NONE: u32 = u32::MAX;

/// A value that takes whole words of parameters.
pub(crate) trait ParamField {
    /// Number of words.
    const N_WORDS: usize;

    /// Appends the words.
    fn push(&self, words: &mut Vec<u32>);
}

impl ParamField for u32 {
    const N_WORDS: usize = 1;

    fn push(&self, words: &mut Vec<u32>) {
        words.push(*self);
    }
}

impl ParamField for f32 {
    const N_WORDS: usize = 1;

    fn push(&self, words: &mut Vec<u32>) {
        words.push(self.to_bits());
    }
}

impl ParamField for View {
    const N_WORDS: usize = 3;

    fn push(&self, words: &mut Vec<u32>) {
        words.extend([self.first, self.row_stride, self.head_stride]);
    }
}

/// The WGSL declaration of a struct `Params`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WgslStruct(pub(crate) &'static str);

/// Parameters of a kernel, after the [`crate::step::DispatchStep`]'s own four words.
pub(crate) trait Params {
    /// The same fields in WGSL, after `step: Step`. The types have the same names there.
    const WGSL: WgslStruct;

    /// Returns all words.
    fn words(&self) -> Vec<u32>;
}

/// Declares a parameter struct: `params! { struct AddParams { x: View, n_cols: u32 } }`.
macro_rules! params {
    (
        $(#[$meta:meta])*
        struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $kind:ty),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name {
            $($(#[$field_meta])* pub(super) $field: $kind,)+
        }

        impl $crate::params::Params for $name {
            const WGSL: $crate::params::WgslStruct = {
                let n_bytes = 4 * (4 $(+ <$kind as $crate::params::ParamField>::N_WORDS)+);
                assert!(n_bytes <= $crate::adapter::PARAM_BYTES_MAX as usize, "too many fields");
                $crate::params::WgslStruct(concat!(
                    "struct Params {\n    step: Step,\n",
                    $("    ", stringify!($field), ": ", stringify!($kind), ",\n",)+
                    "}\n",
                ))
            };

            fn words(&self) -> Vec<u32> {
                let mut words = Vec::new();
                $($crate::params::ParamField::push(&self.$field, &mut words);)+
                words
            }
        }
    };
}

pub(crate) use params;
