//! The functions and tests of templates, and the functions that `compile` calls instead of
//! instructions.

use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, tests};

use crate::text::template::meter::{RenderMeter, refused, units};
use crate::text::template::operators::{self, CALL_WORK, compare};
use crate::text::template::python;
use crate::text::template::values::{self, Namespace, SequenceKind, walk};

/// Prefix of an error in the template's own words, to which the library's description is not added.
pub(super) const REFUSAL: &str = "the template refuses: ";
/// Maximum characters of a template's own error text; an error shows fewer.
const REFUSAL_CHARS_MAX: usize = 1000;
/// Maximum items of a range.
const RANGE_MAX: i128 = 100_000;
/// Work of a macro call, and memory for each name that it captures from its surroundings.
const MACRO_WORK: u64 = 1000;
const MACRO_ARG_WORK: u64 = 300;
const CLOSURE_NAME_BYTES: u64 = 256;

const NEW_MAP_WORK: u64 = 600;

/// A function that `compile` calls, with its arguments.
type OperatorFn = fn(&RenderMeter, &mut State<'_, '_>, &[Value]) -> Result<Value, Error>;
/// A function of two values.
type BinaryOperator = fn(&RenderMeter, &Value, &Value) -> Result<Value, Error>;

const BINARY: [(&str, BinaryOperator); 12] = [
    ("op:add", operators::add),
    ("op:mul", operators::mul),
    ("op:concat", operators::concat),
    ("op:in", operators::contained),
    ("op:item", operators::item),
    ("op:unpacked", operators::unpacked),
    ("op:eq", |meter, a, b| compare(meter, a, b, |a, b| a == b)),
    ("op:ne", |meter, a, b| compare(meter, a, b, |a, b| a != b)),
    ("op:lt", |meter, a, b| compare(meter, a, b, |a, b| a < b)),
    ("op:le", |meter, a, b| compare(meter, a, b, |a, b| a <= b)),
    ("op:gt", |meter, a, b| compare(meter, a, b, |a, b| a > b)),
    ("op:ge", |meter, a, b| compare(meter, a, b, |a, b| a >= b)),
];

/// Aliases of tests.
const COMPARISONS: [(&str, &str); 17] = [
    ("eq", "op:eq"),
    ("equalto", "op:eq"),
    ("==", "op:eq"),
    ("ne", "op:ne"),
    ("!=", "op:ne"),
    ("lt", "op:lt"),
    ("lessthan", "op:lt"),
    ("<", "op:lt"),
    ("le", "op:le"),
    ("<=", "op:le"),
    ("gt", "op:gt"),
    ("greaterthan", "op:gt"),
    (">", "op:gt"),
    ("ge", "op:ge"),
    (">=", "op:ge"),
    ("in", "op:in"),
    ("sameas", "op:eq"),
];

const OPERATORS: [(&str, OperatorFn); 11] = [
    ("op:slice", |meter, _, args| match args {
        [value, start, stop, step] => operators::slice(meter, value, [start, stop, step]),
        _ => Err(Error::from(ErrorKind::MissingArgument)),
    }),
    ("op:list", |meter, _, args| values::list(meter, args.to_vec())),
    ("op:tuple", |meter, _, args| values::sequence(meter, args.to_vec(), SequenceKind::Tuple)),
    ("op:map", |meter, _, args| {
        let pairs = args.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        values::map(meter, pairs.collect())
    }),
    ("op:keep", |meter, _, args| values::keep(meter, one(args).clone())),
    ("op:iterated", |meter, _, args| operators::iterated(meter, one(args))),
    ("op:begin_capture", |meter, _, _| {
        meter.work(CALL_WORK)?;
        meter.begin_capture();
        Ok(Value::UNDEFINED)
    }),
    ("op:begin_macro", |meter, _, args| {
        let n_args = u64::try_from(one(args).clone()).unwrap_or(0);
        meter.work(MACRO_WORK + MACRO_ARG_WORK * n_args)?;
        meter.begin_capture();
        Ok(Value::UNDEFINED)
    }),
    ("op:end_capture", |meter, _, _| {
        meter.end_capture();
        Ok(Value::UNDEFINED)
    }),
    ("op:enclose", |meter, _, args| {
        // A closure lives as long as the rendering.
        let n_names = u64::try_from(one(args).clone()).unwrap_or(0);
        meter.work(MACRO_WORK + 200 * n_names)?;
        meter.reserve_for_good(CLOSURE_NAME_BYTES * (n_names + 2))?;
        Ok(Value::UNDEFINED)
    }),
    ("op:method", |meter, state, args| match args {
        [name, value, args @ ..] => {
            python::method(meter, state, value, name.as_str().unwrap_or_default(), args)
        }
        _ => Err(Error::from(ErrorKind::MissingArgument)),
    }),
];

fn one(args: &[Value]) -> &Value {
    args.first().unwrap_or(&Value::UNDEFINED)
}

pub(super) fn add(environment: &mut Environment<'_>, meter: &Arc<RenderMeter>) {
    for (name, function) in BINARY {
        let own = Arc::clone(meter);
        environment.add_filter(name, move |a: &Value, b: &Value| function(&own, a, b));
        for (test, _) in COMPARISONS.iter().filter(|(_, operator)| *operator == name) {
            let own = Arc::clone(meter);
            environment.add_test(*test, move |a: &Value, b: &Value| function(&own, a, b));
        }
    }
    for (name, function) in OPERATORS {
        let own = Arc::clone(meter);
        let call = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            function(&own, state, &args.into_values())
        };
        environment.add_filter(name, call);
    }
    environment.add_filter("op:set_attribute", set_attribute);
    add_functions(environment, meter);
    add_tests(environment, meter);
}

fn set_attribute(value: &Value, target: &Value, name: &str) -> Result<(), Error> {
    match target.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(name, value),
        None => Err(refused(format!("can only assign to namespaces, not {}", target.kind()))),
    }
}

fn add_functions(environment: &mut Environment<'_>, meter: &Arc<RenderMeter>) {
    environment.add_function("raise_exception", raise_exception);
    let own = Arc::clone(meter);
    environment.add_function("range", move |first: i64, end: Option<i64>, step: Option<i64>| {
        range(&own, first, end, step)
    });
    let own = Arc::clone(meter);
    environment
        .add_function("dict", move |args: Rest<ValueOrKwargs>| dict(&own, &args.into_values()));
    let own = Arc::clone(meter);
    environment.add_function("namespace", move |args: Rest<ValueOrKwargs>| {
        own.work(NEW_MAP_WORK + args.iter().map(|_| NEW_MAP_WORK).sum::<u64>())?;
        let namespace = Namespace::default();
        for (name, value) in pairs(&args.into_values())? {
            let name = name.as_str().ok_or_else(|| refused("a namespace has names for keys"))?;
            namespace.set(name, &value)?;
        }
        Ok::<Value, Error>(Value::from_object(namespace))
    });
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    let message: String = message.chars().take(REFUSAL_CHARS_MAX).collect();
    Err(refused(format!("{REFUSAL}{message}")))
}

fn range(
    meter: &RenderMeter,
    first: i64,
    end: Option<i64>,
    step: Option<i64>,
) -> Result<Value, Error> {
    let (first, end) = end.map_or((0, first), |end| (first, end));
    let step = i128::from(step.unwrap_or(1));
    if step == 0 {
        return Err(refused("cannot create range with step of 0"));
    }
    let distance = (i128::from(end) - i128::from(first)) * step.signum();
    let n_items = (distance + step.abs() - 1).max(0) / step.abs();
    if n_items > RANGE_MAX {
        return Err(refused("range has too many elements"));
    }
    let n_items = u64::try_from(n_items).unwrap_or(0);
    meter.work(5 * n_items)?;
    meter.room(64 * n_items)?;
    let item = |index: u64| i64::try_from(i128::from(first) + i128::from(index) * step);
    values::list(
        meter,
        (0..n_items).filter_map(|index| item(index).ok()).map(Value::from).collect(),
    )
}

/// Returns the pairs of a map, if one is given, and of the named arguments.
fn pairs(args: &[Value]) -> Result<Vec<(Value, Value)>, Error> {
    let (given, named): (Option<&Value>, Kwargs) = from_args(args)?;
    let mut pairs = Vec::new();
    if let Some(given) = given.filter(|given| !given.is_undefined()) {
        if !values::is_map(given) {
            return Err(refused(format!(
                "expected a map or named arguments, not {}",
                given.kind()
            )));
        }
        for key in given.try_iter()? {
            let value = given.get_item(&key)?;
            pairs.push((key, value));
        }
    }
    for name in named.args() {
        pairs.push((Value::from(name), named.peek(name)?));
    }
    Ok(pairs)
}

fn dict(meter: &RenderMeter, args: &[Value]) -> Result<Value, Error> {
    let n_pairs = args.iter().map(|arg| units(arg.len().unwrap_or(0))).sum::<u64>();
    meter.work(NEW_MAP_WORK + 200 * n_pairs)?;
    meter.room(64 * n_pairs)?;
    values::map(meter, pairs(args)?)
}

fn add_tests(environment: &mut Environment<'_>, meter: &Arc<RenderMeter>) {
    let library: [(&'static str, Value); 23] = [
        ("boolean", Value::from_function(tests::is_boolean)),
        ("defined", Value::from_function(tests::is_defined)),
        ("divisibleby", Value::from_function(tests::is_divisibleby)),
        ("endingwith", Value::from_function(tests::is_endingwith)),
        ("escaped", Value::from_function(tests::is_safe)),
        ("even", Value::from_function(tests::is_even)),
        ("false", Value::from_function(tests::is_false)),
        ("filter", Value::from_function(tests::is_filter)),
        ("float", Value::from_function(tests::is_float)),
        ("int", Value::from_function(tests::is_integer)),
        ("integer", Value::from_function(tests::is_integer)),
        ("lower", Value::from_function(tests::is_lower)),
        ("mapping", Value::from_function(tests::is_mapping)),
        ("none", Value::from_function(tests::is_none)),
        ("number", Value::from_function(tests::is_number)),
        ("odd", Value::from_function(tests::is_odd)),
        ("safe", Value::from_function(tests::is_safe)),
        ("startingwith", Value::from_function(tests::is_startingwith)),
        ("string", Value::from_function(tests::is_string)),
        ("test", Value::from_function(tests::is_test)),
        ("true", Value::from_function(tests::is_true)),
        ("undefined", Value::from_function(tests::is_undefined)),
        ("upper", Value::from_function(tests::is_upper)),
    ];
    for (name, function) in library {
        let own = Arc::clone(meter);
        // A type test inspects at most its text; other tests may print their arguments.
        let looks_inside = ["endingwith", "startingwith", "lower", "upper", "filter", "test"];
        let is_deep = looks_inside.contains(&name);
        let test = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            if is_deep {
                let bytes = args.iter().fold(0_u64, |sum, arg| sum.saturating_add(walk(arg)));
                own.work(bytes.saturating_mul(6))?;
                own.room(bytes)?;
            }
            function.call(state, &args)
        };
        environment.add_test(name, test);
    }
    environment.add_test("sequence", python::is_sequence);
    environment.add_test("iterable", python::is_iterable);
}
