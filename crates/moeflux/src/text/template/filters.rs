//! The filters, each charged in advance.
//!
//! Most are the library's, with a charge computed from their arguments. Filters that call other
//! filters by name, or whose cost is known only during execution, are implemented here.
//! **Invariant:** templates cannot use a name with a colon as a filter: such names are `compile`'s
//! operators.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use crate::text::template::charges::{
    Charge, escaped, few, format, groups, indent, indented, items, letters, pieces, rounded,
    sorted, text, trimmed,
};
use crate::text::template::json;
use crate::text::template::meter::{RenderMeter, refused, units};
use crate::text::template::operators::{self, CALL_WORK, each};
use crate::text::template::values::{self, SequenceKind, is_loop, keep, walk};

/// A filter implemented here.
type FilterFn = fn(&RenderMeter, &mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// Work of looking up and calling a filter or test by name.
const NAMED_CALL_WORK: u64 = 250;

const OWN_FILTERS: [(&str, FilterFn); 11] = [
    ("groupby", |meter, _, args| groupby(meter, args)),
    ("join", |meter, _, args| join(meter, args)),
    ("map", map),
    ("reject", |meter, state, args| {
        select(meter, state, args, &ItemSelection { by_attribute: false, kept: false })
    }),
    ("rejectattr", |meter, state, args| {
        select(meter, state, args, &ItemSelection { by_attribute: true, kept: false })
    }),
    ("replace", |meter, _, args| replace(meter, args)),
    ("select", |meter, state, args| {
        select(meter, state, args, &ItemSelection { by_attribute: false, kept: true })
    }),
    ("selectattr", |meter, state, args| {
        select(meter, state, args, &ItemSelection { by_attribute: true, kept: true })
    }),
    ("sum", |meter, _, args| sum(meter, args)),
    ("tojson", |meter, _, args| json::tojson(meter, args)),
    ("trim", trim),
];

fn library() -> [(&'static str, Value, Charge); 35] {
    [
        ("abs", Value::from_function(filters::abs), few),
        ("attr", Value::from_function(filters::attr), few),
        ("batch", Value::from_function(filters::batch), groups),
        ("bool", Value::from_function(filters::bool), few),
        ("capitalize", Value::from_function(filters::capitalize), letters),
        ("count", Value::from_function(filters::length), items),
        ("d", Value::from_function(filters::default), few),
        ("default", Value::from_function(filters::default), few),
        ("dictsort", Value::from_function(filters::dictsort), sorted),
        ("e", Value::from_function(filters::escape), escaped),
        ("escape", Value::from_function(filters::escape), escaped),
        ("first", Value::from_function(filters::first), items),
        ("float", Value::from_function(filters::float), text),
        ("format", Value::from_function(filters::format), format),
        ("indent", Value::from_function(filters::indent), indent),
        ("int", Value::from_function(filters::int), text),
        ("items", Value::from_function(filters::items), items),
        ("last", Value::from_function(filters::last), items),
        ("length", Value::from_function(filters::length), items),
        ("lines", Value::from_function(filters::lines), pieces),
        ("list", Value::from_function(filters::list), items),
        ("lower", Value::from_function(filters::lower), letters),
        ("max", Value::from_function(filters::max), sorted),
        ("min", Value::from_function(filters::min), sorted),
        ("pprint", Value::from_function(filters::pprint), indented),
        ("reverse", Value::from_function(filters::reverse), items),
        ("round", Value::from_function(filters::round), rounded),
        ("safe", Value::from_function(filters::safe), text),
        ("slice", Value::from_function(filters::slice), groups),
        ("sort", Value::from_function(filters::sort), sorted),
        ("split", Value::from_function(filters::split), pieces),
        ("string", Value::from_function(filters::string), text),
        ("title", Value::from_function(filters::title), letters),
        ("unique", Value::from_function(filters::unique), sorted),
        ("upper", Value::from_function(filters::upper), letters),
    ]
}

pub(super) fn add(environment: &mut Environment<'_>, meter: &Arc<RenderMeter>) {
    for (name, function, charge) in library() {
        let meter = Arc::clone(meter);
        let filter = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = begin(&meter, args)?;
            charge(&meter, &args)?;
            keep(&meter, function.call(state, &args)?)
        };
        environment.add_filter(name, filter);
    }
    for (name, function) in OWN_FILTERS {
        let meter = Arc::clone(meter);
        let filter = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = begin(&meter, args)?;
            function(&meter, state, &args)
        };
        environment.add_filter(name, filter);
    }
}

fn begin(meter: &RenderMeter, args: Rest<ValueOrKwargs>) -> Result<Vec<Value>, Error> {
    let args = args.into_values();
    if args.iter().any(is_loop) {
        return Err(refused("a loop variable cannot be filtered"));
    }
    meter.work(CALL_WORK)?;
    Ok(args)
}

/// Returns the value at a path such as `a.b.0` inside another.
fn attribute(meter: &RenderMeter, value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return operators::item(meter, value, path) };
    let mut part = value.clone();
    for name in path.split('.') {
        meter.work(30 + units(name.len()))?;
        part = match name.parse::<usize>() {
            Ok(index) => operators::item(meter, &part, &Value::from(index))?,
            Err(_) => part.get_attr(name)?,
        };
    }
    Ok(part)
}

/// The selection of `select` and its relatives.
struct ItemSelection {
    by_attribute: bool,
    kept: bool,
}

fn select(
    meter: &RenderMeter,
    state: &mut State<'_, '_>,
    args: &[Value],
    selection: &ItemSelection,
) -> Result<Value, Error> {
    let (value, mut rest) = args.split_first().ok_or(ErrorKind::MissingArgument)?;
    let mut path = None;
    if selection.by_attribute {
        let (first, others) = rest.split_first().ok_or(ErrorKind::MissingArgument)?;
        (path, rest) = (Some(first), others);
    }
    let test = match rest.split_first() {
        Some((name, more)) => {
            let name = name.as_str().ok_or_else(|| refused("a test's name must be a string"))?;
            Some((name, more))
        }
        None => None,
    };
    let mut kept = Vec::new();
    each(meter, value, |item| {
        let tested = path.map_or_else(|| Ok(item.clone()), |path| attribute(meter, &item, path))?;
        meter.work(NAMED_CALL_WORK)?;
        let passed = match test {
            Some((name, more)) => state.perform_test(name, &with(&tested, more))?,
            None => tested.is_true(),
        };
        if passed == selection.kept {
            push(meter, &mut kept, item)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    values::list(meter, kept)
}

fn with(first: &Value, more: &[Value]) -> Vec<Value> {
    let mut args = vec![first.clone()];
    args.extend_from_slice(more);
    args
}

/// Appends to a list that no container counts yet.
fn push(meter: &RenderMeter, list: &mut Vec<Value>, item: Value) -> Result<(), Error> {
    if list.len() == list.capacity() {
        meter.room(64 * units(list.len()))?;
    }
    list.push(item);
    Ok(())
}

fn map(meter: &RenderMeter, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (value, rest) = args.split_first().ok_or(ErrorKind::MissingArgument)?;
    let (rest, options): (&[Value], Kwargs) = from_args(rest)?;
    let mut mapped = Vec::new();
    if let Some(path) = options.get::<Option<Value>>("attribute")? {
        let default: Option<Value> =
            if options.has("default") { Some(options.get("default")?) } else { None };
        options.assert_all_used()?;
        each(meter, value, |item| {
            let found = match (attribute(meter, &item, &path), &default) {
                (Ok(found), Some(default)) if found.is_undefined() => default.clone(),
                (Err(_), Some(default)) => default.clone(),
                (found, _) => found?,
            };
            push(meter, &mut mapped, found)?;
            Ok(ControlFlow::Continue(()))
        })?;
        return values::list(meter, mapped);
    }
    let (name, more) =
        rest.split_first().ok_or_else(|| refused("map: the name of a filter is missing"))?;
    let name = name.as_str().filter(|name| !name.contains(':'));
    let name = name.ok_or(ErrorKind::UnknownFilter)?;
    each(meter, value, |item| {
        meter.work(NAMED_CALL_WORK)?;
        push(meter, &mut mapped, state.apply_filter(name, &with(&item, more))?)?;
        Ok(ControlFlow::Continue(()))
    })?;
    values::list(meter, mapped)
}

fn sum(meter: &RenderMeter, args: &[Value]) -> Result<Value, Error> {
    let (value, path, start, options): (&Value, Option<Value>, Option<Value>, Kwargs) =
        from_args(args)?;
    let path = path.map_or_else(|| options.get::<Option<Value>>("attribute"), |it| Ok(Some(it)))?;
    let start = start.map_or_else(|| options.get::<Option<Value>>("start"), |it| Ok(Some(it)))?;
    options.assert_all_used()?;
    let mut sum = start.unwrap_or_else(|| Value::from(0));
    each(meter, value, |item| {
        let item = match &path {
            Some(path) => attribute(meter, &item, path)?,
            None => item,
        };
        meter.work(CALL_WORK)?;
        if !item.is_undefined() {
            sum = operators::add(meter, &sum, &item)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(sum)
}

fn join(meter: &RenderMeter, args: &[Value]) -> Result<Value, Error> {
    let (value, joiner, path, options): (&Value, Option<Value>, Option<Value>, Kwargs) =
        from_args(args)?;
    let joiner = joiner.map_or_else(|| options.get::<Option<Value>>("d"), |it| Ok(Some(it)))?;
    let path = path.map_or_else(|| options.get::<Option<Value>>("attribute"), |it| Ok(Some(it)))?;
    options.assert_all_used()?;
    let mut parts = Vec::new();
    each(meter, value, |item| {
        let item = match &path {
            Some(path) => attribute(meter, &item, path)?,
            None => item,
        };
        push(meter, &mut parts, item)?;
        Ok(ControlFlow::Continue(()))
    })?;
    joined(meter, &parts, &joiner.unwrap_or_else(|| Value::from("")))
}

/// Concatenates the printed forms of values, with another value between them.
pub(super) fn joined(meter: &RenderMeter, parts: &[Value], joiner: &Value) -> Result<Value, Error> {
    meter.room(16 * units(parts.len()))?;
    let mut all = Vec::with_capacity(2 * parts.len());
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            all.push(joiner);
        }
        all.push(part);
    }
    operators::joined(meter, &all)
}

/// Trims a text. Without a set of characters, a text with nothing to trim is not copied, because
/// contents are long.
fn trim(meter: &RenderMeter, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    if let [value] = args
        && let Some(text) = value.as_str()
    {
        meter.work(units(text.len()))?;
        return operators::part(meter, value, text.trim());
    }
    trimmed(meter, args)?;
    keep(meter, Value::from_function(filters::trim).call(state, args)?)
}

fn replace(meter: &RenderMeter, args: &[Value]) -> Result<Value, Error> {
    let (value, from, to): (&Value, &Value, &Value) = from_args(args)?;
    let value = operators::joined(meter, &[value])?;
    let [from, to] = [operators::joined(meter, &[from])?, operators::joined(meter, &[to])?];
    let (from, to) = (from.as_str().unwrap_or_default(), to.as_str().unwrap_or_default());
    replaced(meter, &value, from, to, usize::MAX)
}

/// Replaces at most `n_max` occurrences of `from` in a text.
pub(super) fn replaced(
    meter: &RenderMeter,
    value: &Value,
    from: &str,
    to: &str,
    n_max: usize,
) -> Result<Value, Error> {
    let text = value.as_str().unwrap_or_default();
    meter.work(2 * units(text.len() + from.len()))?;
    let n_found = text.matches(from).take(n_max).count();
    if n_found == 0 {
        return Ok(value.clone());
    }
    let bytes = (units(to.len()).saturating_mul(units(n_found))).saturating_add(units(text.len()));
    meter.work(bytes.saturating_add(10 * units(n_found)))?;
    meter.room(bytes.saturating_mul(3))?;
    meter.text(text.replacen(from, to, n_max))
}

/// Groups items by an attribute, in its order. Each group has a `grouper` and a `list`.
fn groupby(meter: &RenderMeter, args: &[Value]) -> Result<Value, Error> {
    let (value, path, options): (&Value, Option<Value>, Kwargs) = from_args(args)?;
    let path = path.map_or_else(|| options.get::<Value>("attribute"), Ok)?;
    let default = options.get::<Option<Value>>("default")?.unwrap_or_default();
    let is_exact = options.get::<Option<bool>>("case_sensitive")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut keyed: Vec<(Value, Value)> = Vec::new();
    let mut keys_walk = 0_u64;
    each(meter, value, |item| {
        let key = match attribute(meter, &item, &path) {
            Ok(key) if !key.is_undefined() => key,
            _ => default.clone(),
        };
        let key = match key.as_str() {
            Some(text) if !is_exact => {
                meter.work(units(text.len()))?;
                meter.room(2 * units(text.len()))?;
                (meter.text(text.to_ascii_lowercase())?, key)
            }
            _ => (key.clone(), key),
        };
        keys_walk = keys_walk.saturating_add(walk(&key.0));
        meter.room(64 * units(keyed.len()))?;
        keyed.push((key.0, values::sequence(meter, vec![key.1, item], SequenceKind::Tuple)?));
        Ok(ControlFlow::Continue(()))
    })?;
    meter.work(keys_walk.saturating_mul(6 * u64::from(keyed.len().max(1).ilog2() + 1)))?;
    keyed.sort_by(|a, b| a.0.cmp(&b.0));
    let mut groups = Vec::new();
    for group in keyed.chunk_by(|a, b| a.0.cmp(&b.0) == Ordering::Equal) {
        let mut pairs = group.iter().filter_map(|(_, pair)| values::items(pair));
        let members = pairs.clone().filter_map(|pair| pair.get(1).cloned()).collect();
        let grouper = pairs.next().and_then(|pair| pair.first().cloned()).unwrap_or_default();
        let members = values::list(meter, members)?;
        groups.push(values::sequence(meter, vec![grouper, members], SequenceKind::Group)?);
    }
    values::list(meter, groups)
}
