//! The lists, maps and namespaces of templates.
//!
//! Each stores its depth and the cost of a walk over it, so that a charge needs no walk.
//! **Invariant:** a value is at most [`DEPTH_MAX`] deep and contains no namespace and no loop
//! variable, so there are no cycles, and recursion can print, compare and drop it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, Value};
use serde_json::Value as Json;

use crate::text::template::meter::{ByteReservation, RenderMeter, refused, units};

/// Maximum nesting. Messages are parsed with a limit of 128; a template adds a few levels.
pub(super) const DEPTH_MAX: u32 = 160;

/// Work of visiting a value without parts.
const LEAF_WORK: u64 = 16;
const LIST_ENTRY_BYTES: u64 = 32;
const MAP_ENTRY_BYTES: u64 = 96;
/// Maximum names of a namespace.
const NAMES_MAX: usize = 1000;

/// The depth of a value, and the cost of one walk over all of it. Parts that occur twice count
/// twice, because walks visit them twice.
#[derive(Clone, Copy, Debug)]
struct ValueCost {
    depth: u32,
    walk: u64,
    bytes: u64,
}

/// The kind of a [`TemplateList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SequenceKind {
    List,
    Tuple,
    /// A tuple of `groupby`, whose two items have names.
    Group,
}

/// A list or tuple.
#[derive(Debug)]
pub(super) struct TemplateList {
    items: Vec<Value>,
    kind: SequenceKind,
    cost: ValueCost,
    _reservation: ByteReservation,
}

impl Object for TemplateList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let index = ["grouper", "list"].iter().position(|name| *name == key)?;
        (self.kind == SequenceKind::Group).then(|| self.items.get(index).cloned()).flatten()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        let other = other.downcast_ref::<Self>()?;
        let is_tuple = |list: &Self| list.kind != SequenceKind::List;
        match is_tuple(self).cmp(&is_tuple(other)) {
            Ordering::Equal => None,
            order => Some(order),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.items.as_slice()) {
            (SequenceKind::List, items) => f.debug_list().entries(items).finish(),
            (_, [one]) if !f.alternate() => write!(f, "({one:?},)"),
            (_, items) => {
                let mut tuple = f.debug_tuple("");
                for item in items {
                    tuple.field(item);
                }
                if items.is_empty() { f.write_str("()") } else { tuple.finish() }
            }
        }
    }
}

/// A map with ordered keys.
#[derive(Debug)]
pub(super) struct TemplateMap {
    /// A map of the library, which provides order and hashing.
    inner: DynObject,
    cost: ValueCost,
    _reservation: ByteReservation,
}

impl Object for TemplateMap {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.inner.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.inner.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.inner.enumerate()
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.inner.enumerator_len()
    }
}

/// The result of `namespace()`, the only mutable value.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    values: Mutex<BTreeMap<String, Value>>,
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.values().get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.values().keys().map(|key| Value::from(key.as_str())).collect())
    }
}

impl Namespace {
    fn values(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, name: &str, value: &Value) -> Result<(), Error> {
        cost(value)?;
        let mut values = self.values();
        if values.len() >= NAMES_MAX && !values.contains_key(name) {
            return Err(refused(format!("more than {NAMES_MAX} names in a namespace")));
        }
        values.insert(name.to_owned(), value.clone());
        Ok(())
    }
}

/// Returns whether a value is a loop variable, which is mutable and holds its neighbours.
pub(super) fn is_loop(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        !is_own(object) && object.repr() == ObjectRepr::Map && {
            object.get_value_by_str("depth0").is_some()
        }
    })
}

fn is_own(object: &DynObject) -> bool {
    object.downcast_ref::<TemplateList>().is_some()
        || object.downcast_ref::<TemplateMap>().is_some()
        || object.downcast_ref::<Namespace>().is_some()
}

/// Returns the cost of a walk over the whole value: its bytes of text, and a constant per part.
pub(super) fn walk(value: &Value) -> u64 {
    if let Some(text) = value.as_str() {
        return LEAF_WORK + units(text.len());
    }
    let Some(object) = value.as_object() else { return LEAF_WORK };
    if let Some(list) = object.downcast_ref::<TemplateList>() {
        list.cost.walk
    } else if let Some(map) = object.downcast_ref::<TemplateMap>() {
        map.cost.walk
    } else if let Some(namespace) = object.downcast_ref::<Namespace>() {
        let values = namespace.values();
        values.iter().fold(LEAF_WORK, |sum, (key, value)| {
            sum.saturating_add(units(key.len()) + LEAF_WORK).saturating_add(walk(value))
        })
    } else {
        LEAF_WORK * 8
    }
}

/// Returns the depth of a value; 0 if it has no parts.
pub(super) fn depth(value: &Value) -> u64 {
    let Some(object) = value.as_object() else { return 0 };
    let cost = object
        .downcast_ref::<TemplateList>()
        .map(|list| list.cost)
        .or_else(|| object.downcast_ref::<TemplateMap>().map(|map| map.cost));
    cost.map_or(1, |cost| u64::from(cost.depth))
}

/// Returns the number of items or entries, or the bytes of a text.
pub(super) fn n_items(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => units(text.len()),
        None => value.len().map_or(0, units),
    }
}

/// Returns the cost of a value that a container or a namespace is about to hold.
fn cost(value: &Value) -> Result<ValueCost, Error> {
    let leaf = |bytes| ValueCost { depth: 0, walk: walk(value), bytes };
    if let Some(text) = value.as_str() {
        // Longer texts are counted separately.
        return Ok(leaf(units(text.len()).min(128) + 16));
    }
    let Some(object) = value.as_object() else { return Ok(leaf(0)) };
    if let Some(list) = object.downcast_ref::<TemplateList>() {
        Ok(list.cost)
    } else if let Some(map) = object.downcast_ref::<TemplateMap>() {
        Ok(map.cost)
    } else if object.downcast_ref::<Namespace>().is_some() {
        Err(refused("a namespace can be held by a variable only, not by a value"))
    } else if is_loop(value) {
        Err(refused("a loop variable cannot be held by a value"))
    } else if matches!(object.repr(), ObjectRepr::Map | ObjectRepr::Plain) && !value.is_kwargs() {
        Ok(leaf(0)) // Functions and macros have no parts that are values.
    } else {
        Err(refused("a value of this kind cannot be held by another"))
    }
}

fn cost_of(parts: &[Value], own_bytes: u64) -> Result<ValueCost, Error> {
    let mut whole = ValueCost { depth: 0, walk: LEAF_WORK, bytes: own_bytes };
    for part in parts {
        let part_cost = cost(part)?;
        whole.depth = whole.depth.max(part_cost.depth);
        whole.walk = whole.walk.saturating_add(part_cost.walk);
        if part.as_object().is_none() {
            whole.bytes += part_cost.bytes;
        }
    }
    whole.depth += 1;
    if whole.depth > DEPTH_MAX {
        return Err(refused(format!("a value nested more than {DEPTH_MAX} deep")));
    }
    Ok(whole)
}

/// Creates a list and counts its bytes.
pub(super) fn list(meter: &RenderMeter, items: Vec<Value>) -> Result<Value, Error> {
    sequence(meter, items, SequenceKind::List)
}

pub(super) fn sequence(
    meter: &RenderMeter,
    items: Vec<Value>,
    kind: SequenceKind,
) -> Result<Value, Error> {
    meter.work(4 * LEAF_WORK + 12 * units(items.len()))?;
    let cost = cost_of(&items, LIST_ENTRY_BYTES * (units(items.len()) + 4))?;
    let reservation = meter.reserve(cost.bytes)?;
    Ok(Value::from_object(TemplateList { items, kind, cost, _reservation: reservation }))
}

/// Creates a map. Of equal keys the last takes precedence.
pub(super) fn map(meter: &RenderMeter, pairs: Vec<(Value, Value)>) -> Result<Value, Error> {
    let n_pairs = units(pairs.len());
    meter.work(200 + 120 * n_pairs)?;
    let (keys, values): (Vec<Value>, Vec<Value>) = pairs.into_iter().unzip();
    let of_keys = cost_of(&keys, MAP_ENTRY_BYTES * (n_pairs + 2))?;
    let of_values = cost_of(&values, 0)?;
    meter.work(of_keys.walk.saturating_mul(6))?;
    let cost = ValueCost {
        depth: of_keys.depth.max(of_values.depth),
        walk: of_keys.walk.saturating_add(of_values.walk),
        bytes: of_keys.bytes + of_values.bytes,
    };
    let reservation = meter.reserve(cost.bytes)?;
    Ok(map_of(keys.into_iter().zip(values), cost, reservation))
}

fn map_of(
    pairs: impl Iterator<Item = (Value, Value)>,
    cost: ValueCost,
    reservation: ByteReservation,
) -> Value {
    let inner = Value::from_pairs(pairs);
    let inner = inner.as_object().cloned().expect("a map is an object");
    Value::from_object(TemplateMap { inner, cost, _reservation: reservation })
}

/// Returns the kind of a sequence; `None` for other values.
pub(super) fn sequence_kind(value: &Value) -> Option<SequenceKind> {
    Some(value.downcast_object_ref::<TemplateList>()?.kind)
}

/// Returns the items of a list or tuple.
pub(super) fn items(value: &Value) -> Option<&[Value]> {
    Some(&value.downcast_object_ref::<TemplateList>()?.items)
}

pub(super) fn is_map(value: &Value) -> bool {
    value.downcast_object_ref::<TemplateMap>().is_some()
}

/// Converts a value of the library into one of this module: iterators become lists, long texts are
/// tracked.
pub(super) fn keep(meter: &RenderMeter, value: Value) -> Result<Value, Error> {
    keep_at(meter, value, 0)
}

fn keep_at(meter: &RenderMeter, value: Value, level: u32) -> Result<Value, Error> {
    if value.as_str().is_some() {
        meter.watch(&value)?;
        return Ok(value);
    }
    let Some(object) = value.as_object() else { return Ok(value) };
    if is_own(object) {
        return Ok(value);
    }
    // The library returns at most pairs in groups in a list.
    if level > 4 {
        return Err(refused("a value of this kind cannot be held by another"));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let kind = if value.is_tuple() { SequenceKind::Tuple } else { SequenceKind::List };
            let mut items = Vec::new();
            for item in value.try_iter()? {
                meter.work(LEAF_WORK)?;
                if items.len() == items.capacity() {
                    meter.room(2 * LIST_ENTRY_BYTES * units(items.len()))?;
                }
                items.push(keep_at(meter, item, level + 1)?);
            }
            sequence(meter, items, kind)
        }
        ValueKind::Map if value.is_kwargs() => {
            let keys = value.try_iter()?;
            let pairs: Result<Vec<_>, Error> =
                keys.map(|key| value.get_item(&key).map(|item| (key, item))).collect();
            map(meter, pairs?)
        }
        _ => Ok(value),
    }
}

/// Converts a message's JSON. Its bytes are not counted, because they exist before the rendering.
pub(super) fn from_json(meter: &RenderMeter, json: &Json) -> Result<Value, Error> {
    from_json_at(meter, json, 0)
}

fn from_json_at(meter: &RenderMeter, json: &Json, level: u32) -> Result<Value, Error> {
    if level >= DEPTH_MAX {
        return Err(refused(format!("a message nested more than {DEPTH_MAX} deep")));
    }
    let part = |json| from_json_at(meter, json, level + 1);
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(is_true) => Value::from(*is_true),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (_, Some(number)) => Value::from(number),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => given(meter, items.iter().map(part).collect::<Result<_, _>>()?)?,
        Json::Object(entries) => {
            let keys = entries.keys().map(|key| Value::from(key.as_str())).collect();
            given_map(meter, keys, entries.values().map(part).collect::<Result<_, _>>()?)?
        }
    })
}

/// Creates a list that exists before the rendering; its bytes are not counted.
pub(super) fn given(meter: &RenderMeter, items: Vec<Value>) -> Result<Value, Error> {
    let cost = cost_of(&items, 0)?;
    let reservation = meter.reserve_nothing();
    Ok(Value::from_object(TemplateList {
        items,
        kind: SequenceKind::List,
        cost,
        _reservation: reservation,
    }))
}

/// Creates a map that exists before the rendering; its bytes are not counted.
pub(super) fn given_map(
    meter: &RenderMeter,
    keys: Vec<Value>,
    values: Vec<Value>,
) -> Result<Value, Error> {
    let of_keys = cost_of(&keys, 0)?;
    let mut cost = cost_of(&values, 0)?;
    cost.walk = cost.walk.saturating_add(of_keys.walk);
    Ok(map_of(keys.into_iter().zip(values), cost, meter.reserve_nothing()))
}
