//! What keeps a hostile chat template within its steps: limits on its source, and checks in its compiled form.
//!
//! The template engine charges steps for what a template does, but not for walking nested values: a list that
//! holds its predecessor twice, sixty times over, is small in memory and endless when it is turned into text,
//! compared or used as a key. So the compiled instructions are rewritten: whatever makes a value is followed by
//! a filter that measures it as if it were written out, charges steps for that and refuses what is too large or
//! too deep, and filters, tests and methods measure what they are given. A namespace, which can change after it
//! was measured, may not be inside another value. Uses the engine's `unstable_machinery`: nothing else reaches
//! its instructions. Start at [`compile`].

use std::collections::{BTreeMap, BTreeSet};

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt};
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

/// Bytes of source; the largest real templates have 50 KB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Parts of one tag. Chains of operators become nested calls in the compiler.
const MAX_TAG_TOKENS: usize = 1_000;
/// Tags, which may all be nested.
const MAX_TAGS: usize = 10_000;
/// Depth of a value.
const MAX_DEPTH: usize = 64;
/// What a node counts in the size of a value written out, beside its text.
const NODE_BYTES: u64 = 32;
/// Bytes of a text that are read for one step.
const BYTES_PER_STEP: u64 = 256;
/// Digits of a width or precision in a format.
const MAX_WIDTH_DIGITS: usize = 4;
/// No local slot: the engine then looks a filter up each time.
const NO_SLOT: u8 = u8::MAX;

/// Filters that neither look inside the items of a list nor make a value larger or deeper.
const SHALLOW: &[&str] =
    &["length", "count", "first", "last", "default", "d", "list", "reverse", "tojson", "string"];

/// A template ready to run.
pub(super) struct Compiled<'s> {
    pub(super) main: Instructions<'s>,
    pub(super) blocks: BTreeMap<&'s str, Instructions<'s>>,
}

/// Compiles a template with checks.
///
/// **Errors**: it is not valid, or larger than any template is.
pub(super) fn compile<'s>(
    name: &'s str,
    source: &'s str,
    syntax: &SyntaxConfig,
) -> Result<Compiled<'s>, Error> {
    check_source(source, syntax)?;
    let tree = parse(source, name, syntax.clone())?;
    let mut repeats = false;
    each_expression(&tree, &mut |expr| repeats |= repeats_list(expr));
    if repeats {
        return Err(refused("a list cannot be repeated with '*'"));
    }
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (main, blocks) = generator.finish();
    let blocks = blocks.into_iter().map(|(name, block)| Ok((name, guarded(&block)?)));
    Ok(Compiled { main: guarded(&main)?, blocks: blocks.collect::<Result<_, Error>>()? })
}

fn refused(detail: &'static str) -> Error {
    Error::new(ErrorKind::SyntaxError, detail)
}

fn check_source(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(refused("the template is larger than 1 MiB"));
    }
    let (mut tags, mut in_tag) = (0, 0);
    for token in tokenize(source, false, syntax.clone()) {
        match token?.0 {
            Token::BlockStart | Token::VariableStart => {
                tags += 1;
                in_tag = 0;
            }
            Token::TemplateData(_) => in_tag = 0,
            _ => in_tag += 1,
        }
        if in_tag > MAX_TAG_TOKENS {
            return Err(refused("a tag has more than 1,000 parts"));
        }
        if tags > MAX_TAGS {
            return Err(refused("the template has more than 10,000 tags"));
        }
    }
    Ok(())
}

/// Whether an expression multiplies a list that is written out. The compiler would compute with it, and no
/// real template does so.
fn repeats_list(expr: &Expr<'_>) -> bool {
    fn is_list(expr: &Expr<'_>) -> bool {
        match expr {
            Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => true,
            Expr::BinOp(op) => is_list(&op.left) || is_list(&op.right),
            _ => false,
        }
    }
    match expr {
        Expr::BinOp(op) => {
            matches!(op.op, BinOpKind::Mul) && (is_list(&op.left) || is_list(&op.right))
        }
        _ => false,
    }
}

/// Calls `see` with every expression of a statement, those inside others included.
fn each_expression<'a, 's>(stmt: &'a Stmt<'s>, see: &mut dyn FnMut(&'a Expr<'s>)) {
    let mut bodies: Vec<&'a [Stmt<'s>]> = Vec::new();
    let mut exprs: Vec<&'a Expr<'s>> = Vec::new();
    match stmt {
        Stmt::Template(it) => bodies.push(&it.children),
        Stmt::EmitExpr(it) => exprs.push(&it.expr),
        Stmt::ForLoop(it) => {
            exprs.extend([&it.target, &it.iter]);
            exprs.extend(&it.filter_expr);
            bodies.extend([&it.body[..], &it.else_body]);
        }
        Stmt::IfCond(it) => {
            exprs.push(&it.expr);
            bodies.extend([&it.true_body[..], &it.false_body]);
        }
        Stmt::WithBlock(it) => {
            exprs.extend(it.assignments.iter().flat_map(|(target, value)| [target, value]));
            bodies.push(&it.body);
        }
        Stmt::Set(it) => exprs.extend([&it.target, &it.expr]),
        Stmt::SetBlock(it) => {
            exprs.push(&it.target);
            exprs.extend(&it.filter);
            bodies.push(&it.body);
        }
        Stmt::AutoEscape(it) => {
            exprs.push(&it.enabled);
            bodies.push(&it.body);
        }
        Stmt::FilterBlock(it) => {
            exprs.push(&it.filter);
            bodies.push(&it.body);
        }
        Stmt::Block(it) => bodies.push(&it.body),
        Stmt::Import(it) => exprs.extend([&it.expr, &it.name]),
        Stmt::FromImport(it) => exprs.push(&it.expr),
        Stmt::Extends(it) => exprs.push(&it.name),
        Stmt::Include(it) => exprs.push(&it.name),
        Stmt::Macro(it) => {
            exprs.extend(it.args.iter().chain(&it.defaults));
            bodies.push(&it.body);
        }
        Stmt::CallBlock(it) => {
            exprs.push(&it.call.expr);
            exprs.extend(it.call.args.iter().map(argument));
            exprs.extend(it.macro_decl.args.iter().chain(&it.macro_decl.defaults));
            bodies.push(&it.macro_decl.body);
        }
        Stmt::Do(it) => {
            exprs.push(&it.call.expr);
            exprs.extend(it.call.args.iter().map(argument));
        }
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
    }
    while let Some(expr) = exprs.pop() {
        see(expr);
        parts(expr, &mut exprs);
    }
    bodies.into_iter().flatten().for_each(|stmt| each_expression(stmt, see));
}

fn argument<'a, 's>(argument: &'a CallArg<'s>) -> &'a Expr<'s> {
    match argument {
        CallArg::Pos(it)
        | CallArg::Kwarg(_, it)
        | CallArg::PosSplat(it)
        | CallArg::KwargSplat(it) => it,
    }
}

/// Adds the expressions that an expression is made of.
fn parts<'a, 's>(expr: &'a Expr<'s>, out: &mut Vec<&'a Expr<'s>>) {
    match expr {
        Expr::Var(_) | Expr::Const(_) => {}
        Expr::Slice(it) => {
            out.push(&it.expr);
            out.extend(it.start.iter().chain(&it.stop).chain(&it.step));
        }
        Expr::UnaryOp(it) => out.push(&it.expr),
        Expr::BinOp(it) => out.extend([&it.left, &it.right]),
        Expr::Compare(it) => {
            out.push(&it.expr);
            out.extend(it.ops.iter().map(|op| &op.expr));
        }
        Expr::IfExpr(it) => {
            out.extend([&it.test_expr, &it.true_expr]);
            out.extend(&it.false_expr);
        }
        Expr::Filter(it) => {
            out.extend(&it.expr);
            out.extend(it.args.iter().map(argument));
        }
        Expr::Test(it) => {
            out.push(&it.expr);
            out.extend(it.args.iter().map(argument));
        }
        Expr::GetAttr(it) => out.push(&it.expr),
        Expr::GetItem(it) => out.extend([&it.expr, &it.subscript_expr]),
        Expr::Call(it) => {
            out.push(&it.expr);
            out.extend(it.args.iter().map(argument));
        }
        Expr::List(it) => out.extend(&it.items),
        Expr::Tuple(it) => out.extend(&it.items),
        Expr::Map(it) => out.extend(it.keys.iter().chain(&it.values)),
    }
}

/// The same instructions with checks between them; jumps lead to the same places.
fn guarded<'s>(old: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    use Instruction as I;

    let all = || (0..).map_while(|at| Some((at, old.get(at)?)));
    let targets: BTreeSet<u32> = all().filter_map(|(_, instruction)| target(instruction)).collect();
    let mut new = Instructions::new(old.name(), old.source());
    let mut len = 0;
    let mut moved = Vec::new();
    let mut jumps = Vec::new();
    let mut previous: Option<&Instruction<'s>> = None;
    for (at, instruction) in all() {
        moved.push(len);
        let line = old.get_line(at).unwrap_or(1) as u16;
        let mut add = |instruction: Instruction<'s>| {
            len += 1;
            new.add_with_line(instruction, line)
        };
        // A text or number from the source needs no look; another way may lead past it.
        let constant = match previous {
            Some(I::LoadConst(value)) if !targets.contains(&at) => Some(value),
            _ => None,
        };
        let check = |name| Instruction::ApplyFilter(name, Some(1), NO_SLOT);
        let named = |name: &'s str| Instruction::LoadConst(Value::from(name));
        let splat = || refused("argument lists with '*' are not supported");
        match instruction {
            I::StringConcat => {
                add(check(READ));
                add(I::Swap);
                add(check(READ));
                add(I::Swap);
                add(instruction.clone());
                add(check(MADE));
            }
            I::BuildMap(_)
            | I::BuildList(_)
            | I::BuildTuple(_)
            | I::Add
            | I::Slice
            | I::Mul
            | I::CallFunction(_, Some(_))
            | I::CallObject(Some(_)) => {
                add(instruction.clone());
                add(check(MADE));
            }
            I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::CompareAndPreserve(_) => {
                if constant.is_none() {
                    add(check(READ));
                }
                add(instruction.clone());
            }
            I::GetItem => {
                if !matches!(constant, Some(key) if key.kind() == ValueKind::String) {
                    add(check(READ));
                    add(I::Swap);
                    add(check(INDEXED));
                    add(I::Swap);
                }
                add(instruction.clone());
            }
            I::In => {
                add(check(SEARCHED));
                add(instruction.clone());
            }
            I::SetAttr(_) => {
                add(I::Swap);
                add(check(KEPT));
                add(I::Swap);
                add(instruction.clone());
            }
            I::ApplyFilter(name, Some(args), _) => {
                add(named(name));
                add(I::ApplyFilter(FILTER, Some(args + 1), NO_SLOT));
            }
            I::PerformTest(name, Some(args), _) => {
                add(named(name));
                add(I::PerformTest(TEST, Some(args + 1), NO_SLOT));
            }
            I::CallMethod(name, Some(args)) => {
                add(named(name));
                add(I::ApplyFilter(METHOD, Some(args + 1), NO_SLOT));
            }
            I::ApplyFilter(_, None, _)
            | I::PerformTest(_, None, _)
            | I::CallMethod(_, None)
            | I::CallFunction(_, None)
            | I::CallObject(None) => return Err(splat()),
            I::Iterate(_)
            | I::Jump(_)
            | I::JumpIfFalse(_)
            | I::JumpIfFalseOrPop(_)
            | I::JumpIfTrueOrPop(_)
            | I::BuildMacro(..) => jumps.push(add(instruction.clone())),
            other => {
                add(other.clone());
            }
        }
        previous = Some(instruction);
    }
    moved.push(len);
    for at in jumps {
        if let Some(
            I::Iterate(target)
            | I::Jump(target)
            | I::JumpIfFalse(target)
            | I::JumpIfFalseOrPop(target)
            | I::JumpIfTrueOrPop(target)
            | I::BuildMacro(_, target, _),
        ) = new.get_mut(at)
        {
            *target = moved.get(*target as usize).copied().unwrap_or(*target);
        }
    }
    Ok(new)
}

/// Where an instruction may lead.
fn target(instruction: &Instruction<'_>) -> Option<u32> {
    use Instruction as I;
    match instruction {
        I::Iterate(target)
        | I::Jump(target)
        | I::JumpIfFalse(target)
        | I::JumpIfFalseOrPop(target)
        | I::JumpIfTrueOrPop(target)
        | I::BuildMacro(_, target, _) => Some(*target),
        _ => None,
    }
}

/// Names of the checks, which no template can write: `|` and `is` take plain names only.
const MADE: &str = "*made";
const READ: &str = "*read";
const INDEXED: &str = "*indexed";
const SEARCHED: &str = "*searched";
const KEPT: &str = "*kept";
const FILTER: &str = "*filter";
const METHOD: &str = "*method";
const TEST: &str = "*test";

/// Adds the checks to an environment. `limit` is the size of a value written out, in bytes.
pub(super) fn add_checks(environment: &mut Environment<'_>, limit: u64) {
    environment.add_filter(MADE, move |state: &State, value: Value| made(state, value, limit));
    environment.add_filter(READ, move |state: &State, value: Value| -> Result<Value, Error> {
        measure(state, &value, limit)?;
        Ok(value)
    });
    environment.add_filter(INDEXED, move |state: &State, value: Value| -> Result<Value, Error> {
        // The engine counts characters from the start of a text each time.
        state.consume_fuel(value.as_str().map_or(0, str::len) as u64 / 64)?;
        Ok(value)
    });
    environment.add_filter(SEARCHED, move |state: &State, value: Value| -> Result<Value, Error> {
        if value.kind() != ValueKind::Map {
            measure(state, &value, limit)?; // in a map, one key is looked up
        }
        Ok(value)
    });
    environment.add_filter(KEPT, move |state: &State, value: Value| -> Result<Value, Error> {
        if changes(&value) {
            return Err(holds_namespace());
        }
        measure(state, &value, limit)?;
        Ok(value)
    });
    environment.add_filter(FILTER, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let (name, args) = named_call(args)?;
        if SHALLOW.contains(&name.as_str()) {
            return state.apply_filter(&name, &args);
        }
        args.iter().try_for_each(|value| measure(state, value, limit))?;
        let value = state.apply_filter(&name, &args)?;
        made(state, value, limit)
    });
    environment.add_filter(METHOD, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let (name, args) = named_call(args)?;
        let Some((object, args)) = args.split_first() else {
            return Err(Error::from(ErrorKind::MissingArgument));
        };
        measure(state, object, limit)?;
        args.iter().try_for_each(|value| measure(state, value, limit))?;
        if name == "format" {
            check_widths(object.as_str().unwrap_or_default())?;
        }
        let value = object.call_method(state, &name, args)?;
        made(state, value, limit)
    });
    environment.add_test(TEST, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let (name, args) = named_call(args)?;
        // Tests that take nothing more look at what a list is, not at what it holds; but they read texts.
        match args.as_slice() {
            [text] => {
                state.consume_fuel(text.as_str().map_or(0, str::len) as u64 / BYTES_PER_STEP)?
            }
            args => args.iter().try_for_each(|value| measure(state, value, limit))?,
        }
        state.perform_test(&name, &args)
    });
}

/// The name that the rewritten instructions put behind the arguments.
fn named_call(args: Rest<ValueOrKwargs>) -> Result<(String, Vec<Value>), Error> {
    let mut args = args.into_values();
    let name = args.pop().and_then(|name| name.as_str().map(str::to_owned));
    Ok((name.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?, args))
}

/// Refuses `'{:999999999}'.format(x)`, which the engine would write out, and widths that are arguments.
fn check_widths(format: &str) -> Result<(), Error> {
    let mut digits = 0;
    let mut in_field = false;
    let mut rest = format.chars().peekable();
    while let Some(c) = rest.next() {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        match c {
            '{' if !in_field && rest.peek() == Some(&'{') => {
                rest.next();
            }
            '{' if !in_field => in_field = true,
            '}' => in_field = false,
            '{' => digits = MAX_WIDTH_DIGITS + 1,
            _ => {}
        }
        if in_field && digits > MAX_WIDTH_DIGITS {
            let detail = "format: a width has more than 4 digits or is an argument";
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
    }
    Ok(())
}

/// Whether a value can change after it was measured.
fn changes(value: &Value) -> bool {
    let name = value.as_object().map_or("", |object| object.type_name());
    name.ends_with("::Namespace") || name.ends_with("::Loop")
}

fn holds_namespace() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a namespace or loop cannot be inside another value")
}

/// Charges for walking a value, and refuses one that is too large, too deep or holds what can change.
fn measure(state: &State, value: &Value, limit: u64) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        let bytes = text.len() as u64;
        state.consume_fuel(bytes / BYTES_PER_STEP)?;
        return within(bytes, limit);
    }
    if value.as_object().is_none() {
        return Ok(());
    }
    let mut size = Size { bytes: 0, nodes: 0, limit };
    let outcome = size.add(value, 0);
    state.consume_fuel(size.nodes / 2 + size.bytes / 1024)?;
    outcome
}

fn within(bytes: u64, limit: u64) -> Result<(), Error> {
    if bytes <= limit {
        return Ok(());
    }
    let detail = format!("a value takes more than {limit} bytes when it is written out");
    Err(Error::new(ErrorKind::InvalidOperation, detail))
}

/// A value that was just made, measured. What would be computed anew each time it is read, such as a part of a
/// part of a list, becomes a list.
fn made(state: &State, value: Value, limit: u64) -> Result<Value, Error> {
    measure(state, &value, limit)?;
    match value.kind() {
        ValueKind::Iterable => Ok(value.try_iter()?.collect::<Vec<Value>>().into()),
        _ => Ok(value),
    }
}

/// What a value comes to when it is written out.
struct Size {
    bytes: u64,
    nodes: u64,
    limit: u64,
}

impl Size {
    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.nodes += 1;
        let text = value.as_str().map_or(0, |text| text.len() as u64);
        self.bytes += NODE_BYTES + text;
        within(self.bytes, self.limit)?;
        let is_map = match value.kind() {
            ValueKind::Map => true,
            ValueKind::Seq | ValueKind::Iterable => false,
            _ => return Ok(()),
        };
        if depth > MAX_DEPTH {
            let detail = format!("a value is nested more than {MAX_DEPTH} deep");
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        if depth > 0 && changes(value) {
            return Err(holds_namespace());
        }
        if changes(value) && !is_namespace(value) {
            return Ok(());
        }
        for item in value.try_iter()? {
            if is_map {
                self.add(&value.get_item(&item)?, depth + 1)?;
            }
            self.add(&item, depth + 1)?;
        }
        Ok(())
    }
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}
