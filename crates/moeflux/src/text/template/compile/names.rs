//! The names that a macro's body mentions, which are captured where it is defined.
//!
//! The set may be too large: a name that the body assigns itself hides the captured one.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{CallArg, Expr, Macro, Stmt};

/// Returns all names except the macro's own parameters.
pub(super) fn mentioned<'s>(of: &Macro<'s>) -> BTreeSet<&'s str> {
    let mut names = MentionedNames(BTreeSet::new());
    names.statements(&of.body);
    names.expressions(&of.defaults);
    for arg in &of.args {
        if let Expr::Var(var) = arg {
            names.0.remove(var.id);
        }
    }
    names.0
}

/// The variables that a macro mentions.
struct MentionedNames<'s>(BTreeSet<&'s str>);

impl<'s> MentionedNames<'s> {
    fn statements(&mut self, statements: &[Stmt<'s>]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Stmt<'s>) {
        match statement {
            Stmt::EmitExpr(emit) => self.expression(&emit.expr),
            Stmt::ForLoop(each) => {
                self.expressions([&each.iter, &each.target]);
                self.expressions(&each.filter_expr);
                self.statements(&each.body);
                self.statements(&each.else_body);
            }
            Stmt::IfCond(cond) => {
                self.expression(&cond.expr);
                self.statements(&cond.true_body);
                self.statements(&cond.false_body);
            }
            Stmt::WithBlock(with) => {
                self.expressions(with.assignments.iter().map(|(_, value)| value));
                self.statements(&with.body);
            }
            Stmt::Set(set) => self.expressions([&set.expr, &set.target]),
            Stmt::SetBlock(set) => {
                self.expression(&set.target);
                self.expressions(&set.filter);
                self.statements(&set.body);
            }
            Stmt::FilterBlock(block) => {
                self.expression(&block.filter);
                self.statements(&block.body);
            }
            Stmt::Block(block) => self.statements(&block.body),
            Stmt::Macro(inner) => self.0.extend(mentioned(inner)),
            Stmt::CallBlock(block) => {
                self.expression(&block.call.expr);
                self.args(&block.call.args);
                self.0.extend(mentioned(&block.macro_decl));
            }
            Stmt::Do(done) => {
                self.expression(&done.call.expr);
                self.args(&done.call.args);
            }
            _ => {}
        }
    }

    fn expressions<'e>(&mut self, expressions: impl IntoIterator<Item = &'e Expr<'s>>)
    where
        's: 'e,
    {
        for expression in expressions {
            self.expression(expression);
        }
    }

    fn args(&mut self, args: &[CallArg<'s>]) {
        for arg in args {
            match arg {
                CallArg::Pos(value)
                | CallArg::Kwarg(_, value)
                | CallArg::PosSplat(value)
                | CallArg::KwargSplat(value) => self.expression(value),
            }
        }
    }

    fn expression(&mut self, expression: &Expr<'s>) {
        match expression {
            Expr::Var(var) => drop(self.0.insert(var.id)),
            Expr::Const(_) => {}
            Expr::Slice(slice) => {
                self.expression(&slice.expr);
                let bounds = [&slice.start, &slice.stop, &slice.step];
                self.expressions(bounds.into_iter().flatten());
            }
            Expr::UnaryOp(op) => self.expression(&op.expr),
            Expr::BinOp(op) => self.expressions([&op.left, &op.right]),
            Expr::Compare(compare) => {
                self.expression(&compare.expr);
                self.expressions(compare.ops.iter().map(|op| &op.expr));
            }
            Expr::IfExpr(cond) => {
                self.expressions([&cond.test_expr, &cond.true_expr]);
                self.expressions(&cond.false_expr);
            }
            Expr::Filter(filter) => {
                self.expressions(&filter.expr);
                self.args(&filter.args);
            }
            Expr::Test(test) => {
                self.expression(&test.expr);
                self.args(&test.args);
            }
            Expr::GetAttr(get) => self.expression(&get.expr),
            Expr::GetItem(get) => self.expressions([&get.expr, &get.subscript_expr]),
            Expr::Call(call) => {
                self.expression(&call.expr);
                self.args(&call.args);
            }
            Expr::List(list) => self.expressions(&list.items),
            Expr::Tuple(tuple) => self.expressions(&tuple.items),
            Expr::Map(map) => self.expressions(map.keys.iter().chain(&map.values)),
        }
    }
}
