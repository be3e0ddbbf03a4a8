//! Fusion of the ops of a plan into steps: rules over the list of ops.
//!
//! **Invariant:** a rule fuses ops only if their views match; the results of a plan, and the buffer
//! contents after it, are as if each op ran alone and in order.

use moeflux::provider::error::Result;
use moeflux::provider::ids::BufferId;
use moeflux::provider::ops::Op;

use super::attention::fused_heads::NormAndRope;
use super::delta::fused_delta::DeltaLayer;
use super::experts::fused_down::DownAndSum;
use super::products::fused_products::FusedProducts;
use super::selection::fused_route::RouteAndProduct;
use crate::compiler::PlanCompiler;

/// Appends the steps of the first few ops as one, if a kernel fuses them. Returns their number, or
/// 0.
pub(crate) fn compile_fused(ops: &[Op], compiler: &mut PlanCompiler<'_>) -> Result<usize> {
    if let Some(layer) = DeltaLayer::of(ops) {
        layer.compile_fused(compiler)?;
        return Ok(DeltaLayer::N_OPS);
    }
    if let Some(heads) = NormAndRope::of(ops) {
        heads.compile_fused(compiler)?;
        return Ok(NormAndRope::N_OPS);
    }
    if let Some(down) = DownAndSum::of(ops, compiler) {
        down.compile_fused(compiler)?;
        return Ok(DownAndSum::N_OPS);
    }
    if let Some(both) = RouteAndProduct::of(ops, compiler) {
        both.compile_fused(compiler)?;
        return Ok(RouteAndProduct::N_OPS);
    }
    if let Some(products) = FusedProducts::of(ops, compiler) {
        products.compile_fused(compiler)?;
        return Ok(products.n_ops());
    }
    Ok(0)
}

/// Returns the ops with products of the same input adjacent, and SwiGLU directly after its gate and
/// up, as far as dependencies allow.
pub(crate) fn ordered(ops: &[Op]) -> Vec<Op> {
    let mut rest = ops.to_vec();
    let mut ordered = Vec::with_capacity(ops.len());
    while !rest.is_empty() {
        let op = rest.remove(0);
        let Op::MatMul(product) = &op else {
            ordered.push(op);
            continue;
        };
        let (x, mut outs) = (product.x, vec![product.out]);
        ordered.push(op);
        let mut at = 0;
        while let Some(candidate) = rest.get(at) {
            let joins = match candidate {
                Op::MatMul(other) => other.x == x,
                Op::SwiGlu(swiglu) => outs.contains(&swiglu.gate) && outs.contains(&swiglu.up),
                _ => false,
            };
            if joins && rest[..at].iter().all(|before| may_pass(candidate, before)) {
                if let Op::MatMul(other) = candidate {
                    outs.push(other.out);
                }
                ordered.push(rest.remove(at));
            } else {
                at += 1;
            }
        }
    }
    ordered
}

/// Returns whether an op can run before another instead of after it, with the same results.
fn may_pass(op: &Op, before: &Op) -> bool {
    let (written, written_before) = (written_by(op), written_by(before));
    touched_by(before).all(|buffer| !written.contains(&buffer))
        && touched_by(op).all(|buffer| !written_before.contains(&buffer))
}

fn touched_by(op: &Op) -> impl Iterator<Item = BufferId> {
    op.heads().into_iter().map(|heads| heads.buffer)
}

/// Returns the buffers that an op may write: for most ops, all that it names.
fn written_by(op: &Op) -> Vec<BufferId> {
    match op {
        Op::MatMul(op) => vec![op.out.buffer],
        Op::SwiGlu(op) => vec![op.out.buffer],
        Op::RmsNorm(op) => vec![op.out.buffer],
        Op::Route(_) => Vec::new(),
        other => touched_by(other).collect(),
    }
}

#[cfg(test)]
mod tests {
    use moeflux::provider::ids::MatrixId;
    use moeflux::provider::ops::{
        Add, Heads, MatMul, Purpose, Route, RouterKind, SwiGlu, Workspace,
    };

    use super::*;

    fn product(matrix: usize, x: Heads, out: Heads) -> Op {
        Op::MatMul(MatMul { weight: MatrixId(matrix), bias: None, x, out })
    }

    /// Returns products by their matrices, other ops by name.
    fn names(ops: &[Op]) -> Vec<String> {
        let name = |op: &Op| match op.matrices().as_slice() {
            [] => op.name().to_owned(),
            [matrix, ..] => matrix.0.to_string(),
        };
        ops.iter().map(name).collect()
    }

    #[test]
    fn products_of_one_input_come_together() {
        let mut workspace = Workspace::default();
        let [x, logits, gate, up, out, factor] =
            ["x", "logits", "gate", "up", "out", "factor"].map(|name| workspace.buffer(name, 4));
        let (kind, purpose) = (RouterKind::Softmax { renormalise: true }, Purpose::Compute);
        let ops = [
            product(0, x, logits),
            Op::Route(Route { logits, kind, top_k: 2, purpose }),
            product(1, x, gate),
            product(2, x, up),
            Op::SwiGlu(SwiGlu { gate, up, out: gate, limit: None }),
            product(3, gate, out),
            product(4, x, factor),
        ];
        assert_eq!(names(&ordered(&ops)), ["0", "1", "2", "swiglu", "4", "route", "3"]);
    }

    #[test]
    fn ops_do_not_move_past_those_that_they_depend_on() {
        let mut workspace = Workspace::default();
        let [x, y, out] = ["x", "y", "out"].map(|name| workspace.buffer(name, 4));
        let add = |target| Op::Add(Add { x: target, y: target, out: target });
        for between in [add(x), add(out), product(1, out, x), product(1, x, out)] {
            let ops = [product(0, x, y), between, product(2, x, out)];
            assert_eq!(names(&ordered(&ops)), names(&ops));
        }
        // A product is not moved past one that reads its output.
        let ops = [product(0, x, y), product(1, out, y), product(2, x, out)];
        assert_eq!(names(&ordered(&ops)), names(&ops));
    }
}
