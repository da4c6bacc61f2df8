//! Things that the module refers to by pointer: numbers that look like pointers, so that a use after the end
//! is found at once, and never touches memory.

/// Numbered things. A number is used once. The pointers differ from those of slabs with other tags, up to 15.
#[derive(Debug)]
pub struct Slab<T, const TAG: usize> {
    slots: Vec<(usize, Option<T>)>,
    free: Vec<usize>,
    live: usize,
}

impl<T, const TAG: usize> Default for Slab<T, TAG> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), live: 0 }
    }
}

impl<T, const TAG: usize> Slab<T, TAG> {
    /// The pointer to a new thing.
    pub fn insert(&mut self, thing: T) -> usize {
        self.live += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() - 1
        });
        let (generation, slot) = &mut self.slots[index];
        *generation += 1;
        *slot = Some(thing);
        (*generation << 24 | index) << 4 | TAG
    }

    fn index(&self, pointer: usize) -> Option<usize> {
        let index = pointer >> 4 & 0xff_ffff;
        let is_own = pointer & 15 == TAG;
        (is_own && self.slots.get(index)?.0 == pointer >> 28).then_some(index)
    }

    /// The thing behind a pointer, if it is there.
    pub fn get(&self, pointer: usize) -> Option<&T> {
        self.slots[self.index(pointer)?].1.as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, pointer: usize) -> Option<&mut T> {
        let index = self.index(pointer)?;
        self.slots[index].1.as_mut()
    }

    /// Takes a thing out.
    pub fn remove(&mut self, pointer: usize) -> Option<T> {
        let index = self.index(pointer)?;
        let thing = self.slots[index].1.take()?;
        self.live -= 1;
        self.free.push(index);
        Some(thing)
    }

    /// How many things there are.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// All things, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|(_, thing)| thing.as_mut())
    }

    /// All things.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, thing)| thing.as_ref())
    }
}
