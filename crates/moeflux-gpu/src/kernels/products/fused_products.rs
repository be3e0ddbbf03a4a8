//! Products of the same rows as one step: with the norm before them, SwiGLU of two of them, or the
//! addition after a single one.
//!
//! **Invariant:** every buffer that the ops write is written, with the same values up to rounding;
//! a row's result does not depend on other rows. Many rows use the steps of each op.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{Add, Heads, MatMul, Op, RmsNorm, SwiGlu};
use moeflux_kernels::MatrixLayout;

use super::decode_matrix::{self, kind_of, reading};
use super::matvec::{Matvec, N_INVOCATIONS, ROWS_FEW};
use crate::compiler::PlanCompiler;
use crate::kernels::shared::reduce::ReductionMethod;
use crate::kernels::{Kernel, compile_unfused};
use crate::memory::weights::MatrixSlice;
use crate::params::{ParamField, Params, narrow, params};
use crate::shader::{Shader, VectorWidth};
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: NAME, shaders };

/// Name of the shader.
const NAME: &str = "products of a row";

/// Upper bound on products per step: its parameters have space for this many.
const N_PRODUCTS_MAX: usize = 4;

/// One product.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProductOffsets {
    codes: u32,
    scales: u32,
    biases: u32,
    n_outputs: u32,
    out: u32,
}

impl ParamField for ProductOffsets {
    const N_WORDS: usize = 5;

    fn push(&self, words: &mut Vec<u32>) {
        words.extend([self.codes, self.scales, self.biases, self.n_outputs, self.out]);
    }
}

params! {
    struct ProductsParams {
        x: u32,
        normed: u32,
        gain: u32,
        epsilon: f32,
        n_cols: u32,
        residual: u32,
        sum: u32,
        part_0: ProductOffsets,
        part_1: ProductOffsets,
        part_2: ProductOffsets,
        part_3: ProductOffsets,
    }
}

/// A product and the location of its matrix.
#[derive(Clone, Copy, Debug)]
struct FusedProduct<'a> {
    op: &'a MatMul,
    layout: MatrixLayout,
    slice: MatrixSlice,
}

/// Consecutive ops that become one step.
#[derive(Clone, Debug)]
pub(crate) struct FusedProducts<'a> {
    ops: &'a [Op],
    norm: Option<&'a RmsNorm>,
    products: Vec<FusedProduct<'a>>,
    /// Of the first two products.
    swiglu: Option<&'a SwiGlu>,
    add: Option<&'a Add>,
}

impl<'a> FusedProducts<'a> {
    /// Returns as many of the first ops of a list as can be fused, if they are two or more.
    pub(crate) fn of(ops: &'a [Op], compiler: &PlanCompiler<'_>) -> Option<Self> {
        let norm = match ops.first()? {
            Op::RmsNorm(norm) if is_of_a_row(norm) => Some(norm),
            _ => None,
        };
        let mut group = Self { ops: &[], norm, products: Vec::new(), swiglu: None, add: None };
        let mut n_ops = usize::from(norm.is_some());
        for op in &ops[n_ops..] {
            let is_taken = match op {
                Op::MatMul(product) => group.takes_product(product, compiler),
                Op::SwiGlu(swiglu) => group.takes_swiglu(swiglu),
                Op::Add(add) => group.takes_add(add),
                _ => false,
            };
            if !is_taken {
                break;
            }
            n_ops += 1;
        }
        group.ops = &ops[..n_ops];
        (n_ops >= 2).then_some(group)
    }

    /// Returns the number of ops.
    pub(crate) const fn n_ops(&self) -> usize {
        self.ops.len()
    }

    fn takes_product(&mut self, op: &'a MatMul, compiler: &PlanCompiler<'_>) -> bool {
        let matrix = compiler.matrix(op.weight);
        let &[slice] = matrix.slices.as_slice() else {
            return false;
        };
        let x = self.norm.map(|norm| norm.out).or(self.products.first().map(|it| it.op.x));
        let reads = [self.norm.map_or(op.x, |norm| norm.x).buffer, op.x.buffer];
        let is_apart = !reads.contains(&op.out.buffer)
            && self.products.iter().all(|it| it.op.out.buffer != op.out.buffer);
        let mut kinds: Vec<u32> = self.products.iter().map(|it| kind_of(it.layout)).collect();
        kinds.push(kind_of(matrix.layout));
        kinds.sort_unstable();
        kinds.dedup();
        let fits = self.products.len() < N_PRODUCTS_MAX
            && self.add.is_none()
            && kinds.len() <= 2
            && self.products.iter().all(|it| it.slice.arena == slice.arena);
        let is_taken = fits && is_apart && op.bias.is_none() && x.is_none_or(|x| x == op.x);
        if is_taken {
            self.products.push(FusedProduct { op, layout: matrix.layout, slice });
        }
        is_taken
    }

    /// Moves gate and up to the front if it succeeds.
    fn takes_swiglu(&mut self, op: &'a SwiGlu) -> bool {
        let place = |heads: Heads| self.products.iter().position(|product| product.op.out == heads);
        let (Some(gate), Some(up)) = (place(op.gate), place(op.up)) else {
            return false;
        };
        let kind = |idx: usize| kind_of(self.products[idx].layout);
        let is_taken = self.swiglu.is_none()
            && self.add.is_none()
            && op.limit.is_none()
            && op.out == op.gate
            && kind(gate) == kind(up);
        if is_taken {
            let pair = [self.products[gate], self.products[up]];
            self.products.retain(|it| it.op.out != op.gate && it.op.out != op.up);
            self.products.splice(0..0, pair);
            self.swiglu = Some(op);
        }
        is_taken
    }

    fn takes_add(&mut self, op: &'a Add) -> bool {
        let [product] = self.products.as_slice() else {
            return false;
        };
        let is_row = |heads: Heads| heads.n_heads == 1;
        let product = product.op;
        let is_taken = self.norm.is_none()
            && self.swiglu.is_none()
            && self.add.is_none()
            && (op.x == product.out) != (op.y == product.out)
            && [op.x, op.y, op.out].into_iter().all(is_row)
            && op.out.buffer != product.x.buffer
            && op.out.buffer != product.out.buffer;
        if is_taken {
            self.add = Some(op);
        }
        is_taken
    }

    /// Appends the steps.
    pub(crate) fn compile_fused(&self, compiler: &mut PlanCompiler<'_>) -> Result<()> {
        let n_outputs = self.products.iter().map(|it| it.layout.n_rows).sum();
        let n_cols = self.products[0].layout.n_cols;
        let sizes = compiler.subgroup_sizes();
        let whole = Matvec::new((n_outputs, n_cols), sizes);
        let matvec = if self.swiglu.is_some() { whole.of_pairs() } else { whole };
        let params = self.params(compiler);
        let shader =
            self.constants(&params, compiler).shader(matvec, ReductionMethod::on(compiler));
        let pair_end = if self.swiglu.is_some() { 2 } else { 1 };
        let n_groups =
            |product: &FusedProduct<'_>| product.slice.n_rows.div_ceil(matvec.outs_per_group());
        let n_groups: u32 = n_groups(&self.products[0])
            + self.products[pair_end..].iter().map(n_groups).sum::<u32>();
        let grid = Grid::new(GridExtent::fixed(n_groups), GridExtent::rows(1));
        let arena = self.products[0].slice.arena;
        compiler.step(&shader, &params, grid)?.weights(arena).when(1..=ROWS_FEW);
        compile_unfused(self.ops, compiler, ROWS_FEW + 1)
    }

    fn params(&self, compiler: &PlanCompiler<'_>) -> ProductsParams {
        let first = |heads: Heads| compiler.view(&heads).first;
        let x = self.products[0].op.x;
        let offsets = |idx: usize| match self.products.get(idx) {
            None => ProductOffsets::default(),
            Some(FusedProduct { op, slice, .. }) => ProductOffsets {
                codes: slice.codes,
                scales: slice.scales,
                biases: slice.biases,
                n_outputs: slice.n_rows,
                out: first(op.out),
            },
        };
        let (residual, sum) = self.residual_and_sum();
        ProductsParams {
            x: first(self.norm.map_or(x, |norm| norm.x)),
            normed: first(x),
            gain: self.norm.map_or(0, |norm| compiler.vector(norm.gain.vector())),
            epsilon: self.norm.map_or(0.0, |norm| norm.epsilon),
            n_cols: narrow(x.head_dim),
            residual: first(residual),
            sum: first(sum),
            part_0: offsets(0),
            part_1: offsets(1),
            part_2: offsets(2),
            part_3: offsets(3),
        }
    }

    /// Returns the operands of the addition, or the input twice if there is none.
    fn residual_and_sum(&self) -> (Heads, Heads) {
        let FusedProduct { op, .. } = self.products[0];
        self.add.map_or((op.x, op.x), |add| (if add.x == op.out { add.y } else { add.x }, add.out))
    }

    /// Returns the distances between rows, for everything that has rows.
    fn strides(&self, compiler: &PlanCompiler<'_>) -> Strides {
        let stride = |heads: Heads| compiler.view(&heads).row_stride;
        let x = self.products[0].op.x;
        let (residual, sum) = self.residual_and_sum();
        let mut outs = [0; N_PRODUCTS_MAX];
        for (out, product) in outs.iter_mut().zip(&self.products) {
            *out = stride(product.op.out);
        }
        Strides {
            x: stride(self.norm.map_or(x, |norm| norm.x)),
            normed: stride(x),
            residual: stride(residual),
            sum: stride(sum),
            outs,
        }
    }

    fn constants(&self, params: &ProductsParams, compiler: &PlanCompiler<'_>) -> ProductConstants {
        let is_quads = [params.x, params.n_cols, params.gain].iter().all(|it| it % 4 == 0);
        let kinds: Vec<u32> = self.products.iter().map(|it| kind_of(it.layout)).collect();
        let other_kind = kinds.iter().copied().find(|kind| *kind != kinds[0]);
        let others = (0..).zip(&kinds).filter(|(_, kind)| **kind != kinds[0]);
        ProductConstants {
            kinds: [kinds[0], other_kind.unwrap_or(kinds[0])],
            others: others.map(|(idx, _)| 1_u32 << idx).sum(),
            n_products: narrow(kinds.len()),
            extra: match (self.norm, self.swiglu, self.add) {
                (Some(_), None, _) => Extra::Norm,
                (Some(_), Some(_), _) => Extra::NormAndPair,
                (None, Some(_), _) => Extra::Pair,
                (None, None, Some(_)) => Extra::Sum,
                (None, None, None) => Extra::Nothing,
            },
            width: if is_quads { VectorWidth::Four } else { VectorWidth::One },
            strides: self.strides(compiler),
        }
    }
}

/// Returns whether it norms whole rows from one buffer to another.
fn is_of_a_row(norm: &RmsNorm) -> bool {
    norm.gate.is_none()
        && norm.x.n_heads == 1
        && norm.out.n_heads == 1
        && norm.x.buffer != norm.out.buffer
}

/// Operations besides products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    Nothing,
    Norm,
    Pair,
    NormAndPair,
    Sum,
}

/// Distances between rows. Equal in layers of the same shape, so that these constants add no
/// shaders; parameters have no space for them.
#[derive(Clone, Copy, Debug, Default)]
struct Strides {
    x: u32,
    normed: u32,
    residual: u32,
    sum: u32,
    outs: [u32; N_PRODUCTS_MAX],
}

/// Constants of a group's shader.
#[derive(Clone, Copy, Debug)]
struct ProductConstants {
    /// Kind of the first product, and of those in `others`.
    kinds: [u32; 2],
    /// A bit for each product.
    others: u32,
    n_products: u32,
    extra: Extra,
    /// Quads if the row is a multiple of four.
    width: VectorWidth,
    strides: Strides,
}

impl ProductConstants {
    fn shader(self, matvec: Matvec, reduction: ReductionMethod) -> Shader {
        let has_pair = matches!(self.extra, Extra::Pair | Extra::NormAndPair);
        let shader = matvec.shader(NAME, ProductsParams::WGSL, include_str!("fused_products.wgsl"));
        let shader = reading(shader, [("KIND", self.kinds[0]), ("OTHER_KIND", self.kinds[1])])
            .with("OTHERS", self.others)
            .with("N_PRODUCTS", self.n_products)
            .with("N_MATRICES", if has_pair { 2_u32 } else { 1 })
            .with("HAS_NORM", matches!(self.extra, Extra::Norm | Extra::NormAndPair))
            .with("HAS_SUM", self.extra == Extra::Sum)
            .with("IS_QUADS", self.width == VectorWidth::Four)
            .with("X_STRIDE", self.strides.x)
            .with("NORMED_STRIDE", self.strides.normed)
            .with("RESIDUAL_STRIDE", self.strides.residual)
            .with("SUM_STRIDE", self.strides.sum)
            .with("OUT_STRIDE_0", self.strides.outs[0])
            .with("OUT_STRIDE_1", self.strides.outs[1])
            .with("OUT_STRIDE_2", self.strides.outs[2])
            .with("OUT_STRIDE_3", self.strides.outs[3])
            .workspace(self.width)
            .vectors(self.width)
            .fragment(include_str!("../shared/functions.wgsl"));
        reduction.add_to(shader, N_INVOCATIONS)
    }
}

fn shaders() -> Vec<Shader> {
    let layouts = decode_matrix::examples();
    let (kinds, width, strides) = ([0; 2], VectorWidth::Four, Strides::default());
    let extra = Extra::Pair;
    let of_two = ProductConstants { kinds, others: 0, n_products: 2, extra, width, strides };
    let four =
        ProductConstants { others: 0b1001, n_products: 4, extra: Extra::NormAndPair, ..of_two };
    let one = ProductConstants { n_products: 1, extra: Extra::Sum, ..of_two };
    let three = ProductConstants { n_products: 3, extra: Extra::Norm, ..of_two };
    let plain = ProductConstants { extra: Extra::Nothing, width: VectorWidth::One, ..three };
    let matvecs = Matvec::examples().into_iter();
    let mut shaders = Vec::new();
    for (matvec, reduction) in matvecs.zip(ReductionMethod::ALL) {
        for (&layout, &other) in layouts.iter().zip(layouts.iter().rev()) {
            let kinds = [kind_of(layout), kind_of(other)];
            for width in [VectorWidth::One, VectorWidth::Four] {
                shaders.push(ProductConstants { kinds, width, ..four }.shader(matvec, reduction));
            }
        }
        for constants in [of_two, one, three, plain] {
            let kinds = [kind_of(layouts[1]); 2];
            shaders.push(ProductConstants { kinds, ..constants }.shader(matvec, reduction));
        }
    }
    shaders
}
