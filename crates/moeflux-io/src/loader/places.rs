//! Values at numbered, reusable places: nothing is allocated once there are enough places.

/// Values; each keeps its place.
#[derive(Debug)]
pub(super) struct Places<T> {
    values: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Places<T> {
    /// Creates an empty list with room for `n` values without another allocation.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self { values: Vec::with_capacity(n), free: Vec::with_capacity(n) }
    }

    pub(super) fn insert(&mut self, value: T) -> usize {
        let place = self.free.pop().unwrap_or(self.values.len());
        if place == self.values.len() {
            self.values.push(None);
            // So that freeing a place never allocates.
            self.free.reserve(self.values.len());
        }
        self.values[place] = Some(value);
        place
    }

    /// Returns the value at a place that is known to be in use.
    pub(super) fn at(&mut self, place: usize) -> &mut T {
        self.values[place].as_mut().expect("the place is in use")
    }

    pub(super) fn remove(&mut self, place: usize) -> T {
        self.free.push(place);
        self.values[place].take().expect("the place is in use")
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Returns the number of places that are or were in use.
    pub(super) fn n_places(&self) -> usize {
        self.values.len()
    }

    pub(super) fn get(&self, place: usize) -> Option<&T> {
        self.values.get(place)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.values.iter().enumerate().filter_map(|(place, it)| Some((place, it.as_ref()?)))
    }
}
