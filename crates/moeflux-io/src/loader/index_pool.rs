//! Values at reusable indices: nothing is allocated once there are enough indices.

/// A list of values that keep their indices. The index of a removed value is reused.
#[derive(Debug)]
pub(super) struct IndexPool<T> {
    values: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> IndexPool<T> {
    /// Creates an empty list with room for `n` values without another allocation.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self { values: Vec::with_capacity(n), free: Vec::with_capacity(n) }
    }

    pub(super) fn insert(&mut self, value: T) -> usize {
        let index = self.free.pop().unwrap_or(self.values.len());
        if index == self.values.len() {
            self.values.push(None);
            // So that freeing an index never allocates.
            self.free.reserve(self.values.len());
        }
        self.values[index] = Some(value);
        index
    }

    /// Returns the value at an index that is known to be in use.
    pub(super) fn at(&mut self, index: usize) -> &mut T {
        self.values[index].as_mut().expect("the place is in use")
    }

    pub(super) fn remove(&mut self, index: usize) -> T {
        self.free.push(index);
        self.values[index].take().expect("the place is in use")
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Returns the number of indices that are or were in use.
    pub(super) fn n_indices(&self) -> usize {
        self.values.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.values.get(index)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.values.iter().enumerate().filter_map(|(index, it)| Some((index, it.as_ref()?)))
    }
}
