//! Compiles a parsed template into instructions of the library's machine.
//!
//! The library's own generator is not used: it evaluates constants during compilation
//! (`'x' * 10**8`) and uses instructions whose cost cannot be metered. Here every operation that
//! creates or walks something long is a call of a function in `operators`, under a name that
//! templates cannot write. **Invariant:** frames and captures are closed on every exit, including
//! `break`.

mod expressions;
mod names;

use minijinja::Value;
use minijinja::machinery::ast::{Expr, ForLoop, IfCond, Macro, Spanned, Stmt};
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Span, parse};
use minijinja::syntax::SyntaxConfig;

use crate::text::template::check::CompileError;

/// Maximum assignments of a template: each may keep a value in each of a few hundred frames.
const STORES_MAX: usize = 2000;
/// Maximum loops and `with` blocks around an instruction: a lookup searches the frames of all of
/// them.
const FRAMES_MAX: usize = 10;

/// Number of function names that the machine caches; others are looked up.
const CACHED_NAMES_MAX: usize = 50;

/// Flags of the machine, which does not export them.
const LOOP_HAS_VARIABLE: u8 = 1;
const MACRO_HAS_CALLER: u8 = 2;

/// A construct that must be closed when a loop is left early. A loop has the index of its `Iterate`
/// and the indices of the jumps that leave it.
enum OpenConstruct {
    Loop { iterate: u32, leave: Vec<u32> },
    Frame,
    Capture,
}

/// A template's instructions so far, and the constructs that are open.
struct TemplateCompiler<'s> {
    code: Instructions<'s>,
    /// Index of the next instruction.
    next: u32,
    open: Vec<OpenConstruct>,
    n_stores: usize,
    begin_capture: Instruction<'s>,
    filter_ids: Vec<&'s str>,
    test_ids: Vec<&'s str>,
}

type CompileResult = Result<(), CompileError>;

/// Compiles a template into instructions.
pub(super) fn compile<'s>(
    template: &Stmt<'s>,
    name: &'s str,
    source: &'s str,
) -> Result<Instructions<'s>, CompileError> {
    let mut compiler = TemplateCompiler {
        code: Instructions::new(name, source),
        next: 0,
        open: Vec::new(),
        n_stores: 0,
        begin_capture: begin_capture(),
        filter_ids: Vec::new(),
        test_ids: Vec::new(),
    };
    compiler.statement(template)?;
    Ok(compiler.code)
}

/// Returns a `BeginCapture` instruction. The library does not export the type of its argument, so
/// it is copied from the compilation of a small template.
fn begin_capture() -> Instruction<'static> {
    let syntax = SyntaxConfig::default();
    let tree = parse("{% set x %}{% endset %}", "", syntax).expect("a template in this source");
    let mut generator = CodeGenerator::new("", "");
    generator.compile_stmt(&tree);
    let (code, _) = generator.finish();
    let mut instructions = (0..).map_while(|index| code.get(index));
    let found = instructions.find_map(|instruction| match instruction {
        Instruction::BeginCapture(mode) => Some(Instruction::BeginCapture(*mode)),
        _ => None,
    });
    found.expect("a block that is assigned is captured")
}

impl<'s> TemplateCompiler<'s> {
    fn emit(&mut self, instruction: Instruction<'s>, span: Span) -> u32 {
        let index = self.code.add_with_span(instruction, span);
        self.next = index + 1;
        index
    }

    fn constant(&mut self, value: impl Into<Value>, span: Span) {
        self.emit(Instruction::LoadConst(value.into()), span);
    }

    /// Emits a call of a function in `operators` on the topmost values.
    fn operator(&mut self, name: &'static str, n_args: u16, span: Span) {
        let id = local_id(&mut self.filter_ids, name);
        self.emit(Instruction::ApplyFilter(name, Some(n_args), id), span);
    }

    /// Sets the target of the jump at `from`.
    fn patch_jump(&mut self, from: u32, target: u32) {
        match self.code.get_mut(from) {
            Some(
                Instruction::Jump(to)
                | Instruction::JumpIfFalse(to)
                | Instruction::JumpIfFalseOrPop(to)
                | Instruction::JumpIfTrueOrPop(to)
                | Instruction::Iterate(to),
            ) => *to = target,
            _ => unreachable!("only jumps are landed"),
        }
    }

    fn statements(&mut self, statements: &[Stmt<'s>]) -> CompileResult {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'s>) -> CompileResult {
        match statement {
            Stmt::Template(template) => self.statements(&template.children)?,
            Stmt::EmitExpr(emit) => {
                self.expression(&emit.expr)?;
                self.emit(Instruction::Emit, emit.expr.span());
            }
            Stmt::EmitRaw(raw) => {
                self.constant(raw.raw, raw.span());
                self.emit(Instruction::Emit, raw.span());
            }
            Stmt::ForLoop(each) => self.for_loop(each)?,
            Stmt::IfCond(cond) => self.condition(cond)?,
            Stmt::WithBlock(with) => {
                self.begin_frame(with.span())?;
                for (target, value) in &with.assignments {
                    self.expression(value)?;
                    self.assign(target)?;
                }
                self.statements(&with.body)?;
                self.end_frame(with.span());
            }
            Stmt::Set(set) => {
                self.expression(&set.expr)?;
                self.assign(&set.target)?;
            }
            Stmt::SetBlock(set) => {
                self.capture(&set.body, set.span())?;
                if let Some(filter) = &set.filter {
                    self.expression(filter)?;
                }
                self.assign(&set.target)?;
            }
            Stmt::FilterBlock(block) => {
                self.capture(&block.body, block.span())?;
                self.expression(&block.filter)?;
                self.emit(Instruction::Emit, block.span());
            }
            Stmt::Block(block) => {
                self.begin_frame(block.span())?;
                self.statements(&block.body)?;
                self.end_frame(block.span());
            }
            Stmt::Macro(declared) => {
                self.declare_macro(declared)?;
                self.store(declared.name, declared.span())?;
            }
            Stmt::CallBlock(block) => {
                self.call(&block.call, Some(&block.macro_decl))?;
                self.emit(Instruction::Emit, block.span());
            }
            Stmt::Do(done) => {
                self.call(&done.call, None)?;
                self.emit(Instruction::DiscardTop, done.span());
            }
            Stmt::Break(tag) => self.leave_loop(tag.span(), LoopExit::Break)?,
            Stmt::Continue(tag) => self.leave_loop(tag.span(), LoopExit::Continue)?,
            Stmt::AutoEscape(tag) => return Err(unsupported("autoescape", tag.span())),
            Stmt::Import(tag) => return Err(unsupported("import", tag.span())),
            Stmt::FromImport(tag) => return Err(unsupported("from", tag.span())),
            Stmt::Extends(tag) => return Err(unsupported("extends", tag.span())),
            Stmt::Include(tag) => return Err(unsupported("include", tag.span())),
        }
        Ok(())
    }

    fn condition(&mut self, cond: &Spanned<IfCond<'s>>) -> CompileResult {
        self.expression(&cond.expr)?;
        let otherwise = self.emit(Instruction::JumpIfFalse(0), cond.expr.span());
        self.statements(&cond.true_body)?;
        if cond.false_body.is_empty() {
            let end = self.next;
            self.patch_jump(otherwise, end);
            return Ok(());
        }
        let done = self.emit(Instruction::Jump(0), cond.span());
        self.patch_jump(otherwise, done + 1);
        self.statements(&cond.false_body)?;
        let end = self.next;
        self.patch_jump(done, end);
        Ok(())
    }

    /// Compiles a loop. A loop with a condition becomes two: the first collects the items that the
    /// second visits.
    fn for_loop(&mut self, each: &Spanned<ForLoop<'s>>) -> CompileResult {
        let span = each.iter.span();
        if each.recursive {
            return Err(unsupported("for .. recursive", each.span()));
        }
        if let Some(filter) = &each.filter_expr {
            self.constant(0_usize, span);
            self.expression(&each.iter)?;
            self.begin_loop(0, span)?;
            self.emit(Instruction::DupTop, span);
            self.assign(&each.target)?;
            self.expression(filter)?;
            let dropped = self.emit(Instruction::JumpIfFalse(0), filter.span());
            self.emit(Instruction::Swap, span);
            self.constant(1_usize, span);
            self.emit(Instruction::Add, span);
            let kept = self.emit(Instruction::Jump(0), span);
            let drop = self.emit(Instruction::DiscardTop, span);
            self.patch_jump(dropped, drop);
            self.patch_jump(kept, drop + 1);
            self.end_loop(span, false);
            self.emit(Instruction::BuildList(None), span);
            self.operator("op:keep", 1, span);
        } else {
            self.expression(&each.iter)?;
        }
        self.begin_loop(LOOP_HAS_VARIABLE, span)?;
        self.assign(&each.target)?;
        self.statements(&each.body)?;
        let has_else = !each.else_body.is_empty();
        self.end_loop(span, has_else);
        if has_else {
            let skip_else = self.emit(Instruction::JumpIfFalse(0), span);
            self.statements(&each.else_body)?;
            let after = self.next;
            self.patch_jump(skip_else, after);
        }
        Ok(())
    }

    fn begin_loop(&mut self, flags: u8, span: Span) -> CompileResult {
        self.operator("op:iterated", 1, span);
        self.check_frames(span)?;
        self.emit(Instruction::PushLoop(flags), span);
        let iterate = self.emit(Instruction::Iterate(0), span);
        self.open.push(OpenConstruct::Loop { iterate, leave: Vec::new() });
        Ok(())
    }

    fn end_loop(&mut self, span: Span, has_else: bool) {
        let Some(OpenConstruct::Loop { iterate, leave }) = self.open.pop() else {
            unreachable!("what was opened last is closed first");
        };
        let jump = self.emit(Instruction::Jump(iterate), span);
        for from in leave.into_iter().chain([iterate]) {
            self.patch_jump(from, jump + 1);
        }
        if has_else {
            self.emit(Instruction::PushDidNotIterate, span);
        }
        self.emit(Instruction::PopLoopFrame, span);
    }

    fn leave_loop(&mut self, span: Span, exit: LoopExit) -> CompileResult {
        let in_loop = self.open.iter().rposition(|open| matches!(open, OpenConstruct::Loop { .. }));
        let Some(place) = in_loop else {
            return Err(CompileError::new(
                span.start_line,
                "`break` or `continue` outside of a loop",
            ));
        };
        for index in (place + 1..self.open.len()).rev() {
            if matches!(self.open[index], OpenConstruct::Capture) {
                self.close_capture(span);
                self.emit(Instruction::DiscardTop, span);
            } else {
                self.emit(Instruction::PopFrame, span);
            }
        }
        let jump = self.emit(Instruction::Jump(0), span);
        let Some(OpenConstruct::Loop { iterate, leave }) = self.open.get_mut(place) else {
            unreachable!("its place was just found");
        };
        match exit {
            LoopExit::Break => leave.push(jump),
            LoopExit::Continue => {
                let iterate = *iterate;
                self.patch_jump(jump, iterate);
            }
        }
        Ok(())
    }

    fn check_frames(&self, span: Span) -> CompileResult {
        let is_frame = |open: &&OpenConstruct| !matches!(open, OpenConstruct::Capture);
        if self.open.iter().filter(is_frame).count() >= FRAMES_MAX {
            let reason = format!("more than {FRAMES_MAX} loops inside each other");
            return Err(CompileError::new(span.start_line, reason));
        }
        Ok(())
    }

    fn begin_frame(&mut self, span: Span) -> CompileResult {
        self.check_frames(span)?;
        self.emit(Instruction::PushWith, span);
        self.open.push(OpenConstruct::Frame);
        Ok(())
    }

    fn end_frame(&mut self, span: Span) {
        self.open.pop();
        self.emit(Instruction::PopFrame, span);
    }

    /// Compiles statements whose output becomes a value on the stack.
    fn capture(&mut self, body: &[Stmt<'s>], span: Span) -> CompileResult {
        self.operator("op:begin_capture", 0, span);
        self.emit(Instruction::DiscardTop, span);
        self.emit(self.begin_capture.clone(), span);
        self.open.push(OpenConstruct::Capture);
        self.statements(body)?;
        self.open.pop();
        self.close_capture(span);
        Ok(())
    }

    fn close_capture(&mut self, span: Span) {
        self.operator("op:end_capture", 0, span);
        self.emit(Instruction::DiscardTop, span);
        self.emit(Instruction::EndCapture, span);
        self.operator("op:keep", 1, span);
    }

    fn store(&mut self, name: &'s str, span: Span) -> CompileResult {
        self.n_stores += 1;
        if self.n_stores > STORES_MAX {
            let reason = format!("more than {STORES_MAX} assignments");
            return Err(CompileError::new(span.start_line, reason));
        }
        self.emit(Instruction::StoreLocal(name), span);
        Ok(())
    }

    fn assign(&mut self, target: &Expr<'s>) -> CompileResult {
        match target {
            Expr::Var(var) => self.store(var.id, var.span())?,
            Expr::List(list) => self.unpack(&list.items, list.span())?,
            Expr::Tuple(tuple) => self.unpack(&tuple.items, tuple.span())?,
            Expr::GetAttr(attr) => {
                self.expression(&attr.expr)?;
                self.constant(attr.name, attr.span());
                self.operator("op:set_attribute", 3, attr.span());
                self.emit(Instruction::DiscardTop, attr.span());
            }
            other => {
                let reason = format!("cannot assign to a {}", other.description());
                return Err(CompileError::new(other.span().start_line, reason));
            }
        }
        Ok(())
    }

    fn unpack(&mut self, targets: &[Expr<'s>], span: Span) -> CompileResult {
        self.constant(targets.len(), span);
        self.operator("op:unpacked", 2, span);
        self.emit(Instruction::UnpackList(targets.len()), span);
        targets.iter().try_for_each(|target| self.assign(target))
    }

    /// Compiles a macro, which is left on the stack. Its body is emitted in place, and a jump skips
    /// it.
    fn declare_macro(&mut self, declared: &Spanned<Macro<'s>>) -> CompileResult {
        let span = declared.span();
        let outside = std::mem::take(&mut self.open);
        let skip = self.emit(Instruction::Jump(0), span);
        let mut defaults = declared.defaults.iter().rev();
        for arg in declared.args.iter().rev() {
            if let Some(default) = defaults.next() {
                self.emit(Instruction::DupTop, span);
                self.emit(Instruction::IsUndefined, span);
                let given = self.emit(Instruction::JumpIfFalse(0), span);
                self.emit(Instruction::DiscardTop, span);
                self.expression(default)?;
                let after = self.next;
                self.patch_jump(given, after);
            }
            self.assign(arg)?;
        }
        self.constant(declared.args.len(), span);
        self.operator("op:begin_macro", 1, span);
        self.emit(Instruction::DiscardTop, span);
        self.statements(&declared.body)?;
        self.operator("op:end_capture", 0, span);
        self.emit(Instruction::DiscardTop, span);
        self.emit(Instruction::Return, span);
        self.open = outside;

        let mut names = names::mentioned(declared);
        let has_caller = names.remove("caller");
        let enclose = self.next;
        self.constant(names.len(), span);
        self.operator("op:enclose", 1, span);
        self.emit(Instruction::DiscardTop, span);
        for name in names {
            self.emit(Instruction::Enclose(name), span);
        }
        self.emit(Instruction::GetClosure, span);
        let args = declared.args.iter().map(|arg| match arg {
            Expr::Var(var) => Ok(Value::from(var.id)),
            other => Err(CompileError::new(other.span().start_line, "a parameter is a name")),
        });
        let args = args.collect::<Result<Vec<Value>, CompileError>>()?;
        self.constant(args, span);
        let flags = if has_caller { MACRO_HAS_CALLER } else { 0 };
        self.emit(Instruction::BuildMacro(declared.name, skip + 1, flags), span);
        self.patch_jump(skip, enclose);
        Ok(())
    }
}

/// The tag that leaves an iteration of a loop early.
enum LoopExit {
    Break,
    Continue,
}

fn unsupported(tag: &str, span: Span) -> CompileError {
    CompileError::new(span.start_line, format!("chat templates have no `{tag}`"))
}

/// Returns the index of a function in the machine's cache, or the largest `u8` if it has none.
fn local_id<'s>(ids: &mut Vec<&'s str>, name: &'s str) -> u8 {
    let known = ids.iter().position(|known| *known == name);
    if known.is_none() && ids.len() < CACHED_NAMES_MAX {
        ids.push(name);
    }
    let index = known.or_else(|| ids.iter().position(|known| *known == name));
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(u8::MAX)
}
