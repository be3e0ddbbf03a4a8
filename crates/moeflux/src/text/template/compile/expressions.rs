//! Compiles expressions, with the functions of `operators` instead of the machine's instructions.

use minijinja::Value;
use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CallType, Compare, CompareOpKind, Expr, Macro, Spanned, UnaryOpKind,
};
use minijinja::machinery::{Instruction, Span};

use crate::text::template::check::CompileError;
use crate::text::template::compile::{CompileResult, TemplateCompiler, local_id};

/// Maximum arguments of one call.
const ARGS_MAX: usize = 255;
/// Variable for the middle of `a < b < c`; templates cannot write this name.
const MIDDLE: &str = "op:middle";

impl<'s> TemplateCompiler<'s> {
    pub(super) fn expression(&mut self, expression: &Expr<'s>) -> CompileResult {
        let span = expression.span();
        match expression {
            Expr::Var(var) => drop(self.emit(Instruction::Lookup(var.id), span)),
            Expr::Const(constant) => self.constant(constant.value.clone(), span),
            Expr::Slice(slice) => {
                self.expression(&slice.expr)?;
                for bound in [&slice.start, &slice.stop, &slice.step] {
                    match bound {
                        Some(bound) => self.expression(bound)?,
                        None => self.constant((), span),
                    }
                }
                self.operator("op:slice", 4, span);
            }
            Expr::UnaryOp(op) => {
                self.expression(&op.expr)?;
                let instruction = match op.op {
                    UnaryOpKind::Not => Instruction::Not,
                    UnaryOpKind::Neg => Instruction::Neg,
                };
                self.emit(instruction, span);
            }
            Expr::BinOp(op) => self.binary(op.op, [&op.left, &op.right], span)?,
            Expr::Compare(compare) => self.comparisons(compare)?,
            Expr::IfExpr(cond) => {
                self.expression(&cond.test_expr)?;
                let otherwise = self.emit(Instruction::JumpIfFalse(0), span);
                self.expression(&cond.true_expr)?;
                let done = self.emit(Instruction::Jump(0), span);
                self.patch_jump(otherwise, done + 1);
                match &cond.false_expr {
                    Some(value) => self.expression(value)?,
                    None => self.constant(Value::UNDEFINED, span),
                }
                let end = self.next;
                self.patch_jump(done, end);
            }
            Expr::Filter(filter) => {
                if let Some(value) = &filter.expr {
                    self.expression(value)?;
                }
                let n_args = self.args(&filter.args, 1, None, span)?;
                let id = local_id(&mut self.filter_ids, filter.name);
                self.emit(Instruction::ApplyFilter(filter.name, Some(n_args), id), span);
            }
            Expr::Test(test) => {
                self.expression(&test.expr)?;
                let n_args = self.args(&test.args, 1, None, span)?;
                let id = local_id(&mut self.test_ids, test.name);
                self.emit(Instruction::PerformTest(test.name, Some(n_args), id), span);
            }
            Expr::GetAttr(get) => {
                self.expression(&get.expr)?;
                self.emit(Instruction::GetAttr(get.name), span);
            }
            Expr::GetItem(get) => {
                self.expression(&get.expr)?;
                self.expression(&get.subscript_expr)?;
                self.operator("op:item", 2, span);
            }
            Expr::Call(call) => self.call(call, None)?,
            Expr::List(list) => self.built("op:list", list.items.iter(), span)?,
            Expr::Tuple(tuple) => self.built("op:tuple", tuple.items.iter(), span)?,
            Expr::Map(map) => {
                let pairs = map.keys.iter().zip(&map.values);
                self.built("op:map", pairs.flat_map(|(key, value)| [key, value]), span)?;
            }
        }
        Ok(())
    }

    /// Emits a container of the values of expressions.
    fn built<'e>(
        &mut self,
        name: &'static str,
        parts: impl Iterator<Item = &'e Expr<'s>>,
        span: Span,
    ) -> CompileResult
    where
        's: 'e,
    {
        let mut n_parts = 0;
        for part in parts {
            self.expression(part)?;
            n_parts += 1;
        }
        self.operator(name, n_parts, span);
        Ok(())
    }

    fn binary(&mut self, kind: BinOpKind, sides: [&Expr<'s>; 2], span: Span) -> CompileResult {
        let [left, right] = sides;
        self.expression(left)?;
        if matches!(kind, BinOpKind::ScAnd | BinOpKind::ScOr) {
            let instruction = match kind {
                BinOpKind::ScAnd => Instruction::JumpIfFalseOrPop(0),
                _ => Instruction::JumpIfTrueOrPop(0),
            };
            let end = self.emit(instruction, span);
            self.expression(right)?;
            let after = self.next;
            self.patch_jump(end, after);
            return Ok(());
        }
        self.expression(right)?;
        let name = match kind {
            BinOpKind::Sub => return self.plain(Instruction::Sub, span),
            BinOpKind::Div => return self.plain(Instruction::Div, span),
            BinOpKind::FloorDiv => return self.plain(Instruction::IntDiv, span),
            BinOpKind::Rem => return self.plain(Instruction::Rem, span),
            BinOpKind::Pow => return self.plain(Instruction::Pow, span),
            BinOpKind::Add => "op:add",
            BinOpKind::Mul => "op:mul",
            BinOpKind::Concat => "op:concat",
            BinOpKind::Eq => "op:eq",
            BinOpKind::Ne => "op:ne",
            BinOpKind::Lt => "op:lt",
            BinOpKind::Lte => "op:le",
            BinOpKind::Gt => "op:gt",
            BinOpKind::Gte => "op:ge",
            BinOpKind::In | BinOpKind::ScAnd | BinOpKind::ScOr => "op:in",
        };
        self.operator(name, 2, span);
        Ok(())
    }

    /// Emits an instruction that works only on numbers, so its cost is bounded.
    fn plain(&mut self, instruction: Instruction<'s>, span: Span) -> CompileResult {
        self.emit(instruction, span);
        Ok(())
    }

    /// Compiles `a < b < c`: each operand but the first and the last is compared on both sides.
    fn comparisons(&mut self, compare: &Spanned<Compare<'s>>) -> CompileResult {
        let span = compare.span();
        self.expression(&compare.expr)?;
        let mut decided = Vec::new();
        for (index, side) in compare.ops.iter().enumerate() {
            self.expression(&side.expr)?;
            let is_last = index + 1 == compare.ops.len();
            if !is_last {
                self.emit(Instruction::StoreLocal(MIDDLE), span);
                self.emit(Instruction::Lookup(MIDDLE), span);
            }
            let (name, is_negated) = match side.op {
                CompareOpKind::Eq => ("op:eq", false),
                CompareOpKind::Ne => ("op:ne", false),
                CompareOpKind::Lt => ("op:lt", false),
                CompareOpKind::Lte => ("op:le", false),
                CompareOpKind::Gt => ("op:gt", false),
                CompareOpKind::Gte => ("op:ge", false),
                CompareOpKind::In => ("op:in", false),
                CompareOpKind::NotIn => ("op:in", true),
            };
            self.operator(name, 2, span);
            if is_negated {
                self.emit(Instruction::Not, span);
            }
            if !is_last {
                decided.push(self.emit(Instruction::JumpIfFalseOrPop(0), span));
                self.emit(Instruction::Lookup(MIDDLE), span);
            }
        }
        let end = self.next;
        for from in decided {
            self.patch_jump(from, end);
        }
        Ok(())
    }

    pub(super) fn call(
        &mut self,
        call: &Spanned<Call<'s>>,
        caller: Option<&Spanned<Macro<'s>>>,
    ) -> CompileResult {
        let span = call.span();
        match call.identify_call() {
            CallType::Function(name) => {
                let n_args = self.args(&call.args, 0, caller, span)?;
                self.emit(Instruction::CallFunction(name, Some(n_args)), span);
            }
            CallType::Method(of, name) => {
                self.constant(name, span);
                self.expression(of)?;
                let n_args = self.args(&call.args, 2, caller, span)?;
                self.operator("op:method", n_args, span);
            }
            CallType::Object(of) => {
                self.expression(of)?;
                let n_args = self.args(&call.args, 1, caller, span)?;
                self.emit(Instruction::CallObject(Some(n_args)), span);
            }
            CallType::Block(_) => {
                let reason = "chat templates have no `self`";
                return Err(CompileError::new(span.start_line, reason));
            }
        }
        self.operator("op:keep", 1, span);
        Ok(())
    }

    /// Pushes arguments above the `n_before` values on the stack. Named ones come last, in one
    /// value. Returns the total number of values.
    fn args(
        &mut self,
        args: &[CallArg<'s>],
        n_before: usize,
        caller: Option<&Spanned<Macro<'s>>>,
        span: Span,
    ) -> Result<u16, CompileError> {
        let (mut n_positional, mut n_named) = (n_before, 0);
        for arg in args {
            match arg {
                CallArg::Pos(value) => {
                    self.expression(value)?;
                    n_positional += 1;
                }
                CallArg::Kwarg(..) => n_named += 1,
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                    let reason = "chat templates have no `*` or `**` before an argument";
                    return Err(CompileError::new(span.start_line, reason));
                }
            }
        }
        for arg in args {
            if let CallArg::Kwarg(name, value) = arg {
                self.constant(*name, span);
                self.expression(value)?;
            }
        }
        if let Some(caller) = caller {
            self.constant("caller", span);
            self.declare_macro(caller)?;
            n_named += 1;
        }
        if n_named > 0 {
            self.emit(Instruction::BuildKwargs(n_named), span);
            n_positional += 1;
        }
        if n_positional > ARGS_MAX {
            let reason = format!("more than {ARGS_MAX} arguments");
            return Err(CompileError::new(span.start_line, reason));
        }
        u16::try_from(n_positional)
            .map_err(|_| CompileError::new(span.start_line, "too many arguments"))
    }
}
