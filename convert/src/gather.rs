//! Maps stored tensors to tensors of the file and determines their order: that of the checkpoint, by the
//! last part of each tensor.

use std::collections::HashMap;
use std::mem;

use schemas::arch::{Expected, Hparams, Stored};

use crate::checkpoint::StoredTensor;
use crate::error::{Error, Names};

/// The tensors of a checkpoint, matched with the architecture's table.
pub(crate) struct Gathered<'a> {
    /// Tensors of the file, in file order.
    pub(crate) found: Vec<Found<'a>>,
    /// Table entries with missing tensors.
    pub(crate) missing: Vec<Missing<'a>>,
    /// Stored tensors that match no table entry.
    pub(crate) unused: Names,
}

/// A tensor of the file with its stored tensors.
pub(crate) struct Found<'a> {
    pub(crate) row: &'a Expected,
    /// Form in which the checkpoint stores it.
    pub(crate) way: Stored,
    /// The stored tensor, or one per expert.
    pub(crate) parts: Vec<&'a StoredTensor>,
}

/// A table entry with missing tensors.
pub(crate) struct Missing<'a> {
    pub(crate) row: &'a Expected,
    /// True if some of its parts exist.
    pub(crate) partly: bool,
    /// The missing stored tensors.
    pub(crate) names: Vec<String>,
}

/// Matches table entries with a checkpoint's tensors.
///
/// # Errors
/// A tensor is stored in two forms.
pub(crate) fn gather<'a>(
    expected: &'a [Expected],
    hparams: &Hparams,
    stored: &'a [StoredTensor],
) -> Result<Gathered<'a>, Error> {
    let mut rows: Vec<Row<'a>> = expected
        .iter()
        .filter(|row| !row.spec.hf.is_empty())
        .map(|row| Row::new(row, hparams))
        .collect();
    let mut places: HashMap<String, Vec<Place>> = HashMap::new();
    for (row, Row { ways, .. }) in rows.iter().enumerate() {
        for (way, Way { stored, .. }) in ways.iter().enumerate() {
            for (part, name) in stored.names.iter().enumerate() {
                let place = Place { row, way, part };
                places.entry(name.clone()).or_default().push(place);
            }
        }
    }
    let mut found = Vec::new();
    let mut unused = Names(Vec::new());
    for tensor in stored {
        let Some(places) = places.get(&tensor.text_name()) else {
            unused.0.push(tensor.name.clone());
            continue;
        };
        for &place in places {
            let row = &mut rows[place.row];
            if !row.take(tensor, place)? {
                continue;
            }
            match row.is_stack() {
                false => found.extend(row.found()),
                true => found.extend(whole_stacks(&mut rows, place.row)),
            }
        }
    }
    Ok(Gathered {
        found,
        missing: rows.iter().filter_map(Row::missing).collect(),
        unused,
    })
}

/// Returns the expert stacks of a layer, once all are complete: llama.cpp's converter writes them together.
fn whole_stacks<'a>(rows: &mut [Row<'a>], row: usize) -> Vec<Found<'a>> {
    let layer = rows[row].expected.layer;
    let stacks = || |row: &&mut Row<'a>| row.is_stack() && row.expected.layer == layer;
    if !rows
        .iter_mut()
        .filter(stacks())
        .all(|row| row.whole.is_some())
    {
        return Vec::new();
    }
    let mut found: Vec<Found<'_>> = rows
        .iter_mut()
        .filter(stacks())
        .filter_map(Row::found)
        .collect();
    found.sort_by(|a, b| a.way.names[0].cmp(&b.way.names[0]));
    found
}

/// Table entry, form and part that a stored tensor belongs to.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    way: usize,
    part: usize,
}

/// A table entry with the tensors seen so far.
struct Row<'a> {
    expected: &'a Expected,
    ways: Vec<Way<'a>>,
    /// Set once all parts of a form have been seen.
    whole: Option<Whole<'a>>,
}

/// The complete form, and the last of its parts.
#[derive(Clone, Copy)]
struct Whole<'a> {
    way: usize,
    last: &'a StoredTensor,
}

/// One form of storing an entry.
struct Way<'a> {
    stored: Stored,
    parts: Vec<Option<&'a StoredTensor>>,
    n_missing: usize,
}

impl<'a> Row<'a> {
    fn new(expected: &'a Expected, hparams: &Hparams) -> Row<'a> {
        let way = |stored: Stored| Way {
            parts: vec![None; stored.names.len()],
            n_missing: stored.names.len(),
            stored,
        };
        Row {
            expected,
            ways: expected.stored(hparams).into_iter().map(way).collect(),
            whole: None,
        }
    }

    /// Returns true if each expert may have its own tensor.
    fn is_stack(&self) -> bool {
        self.ways.iter().any(|way| way.parts.len() > 1)
    }

    /// Adds a part; returns true if the entry is now complete.
    fn take(&mut self, tensor: &'a StoredTensor, place: Place) -> Result<bool, Error> {
        if let Some(Whole { last, .. }) = self.whole {
            return Err(Error::DuplicateTensor {
                path: tensor.path(),
                tensor: tensor.name.clone(),
                first: last.name.clone(),
                first_path: last.path(),
            });
        }
        let way = &mut self.ways[place.way];
        way.parts[place.part] = Some(tensor);
        way.n_missing -= 1;
        if way.n_missing == 0 {
            self.whole = Some(Whole {
                way: place.way,
                last: tensor,
            });
        }
        Ok(self.whole.is_some())
    }

    /// Returns the tensor of a complete entry, once.
    fn found(&mut self) -> Option<Found<'a>> {
        let way = &mut self.ways[self.whole?.way];
        let parts: Option<Vec<_>> = mem::take(&mut way.parts).into_iter().collect();
        parts.filter(|parts| !parts.is_empty()).map(|parts| Found {
            row: self.expected,
            way: way.stored.clone(),
            parts,
        })
    }

    fn missing(&self) -> Option<Missing<'a>> {
        if self.whole.is_some() {
            return None;
        }
        // The form with the fewest missing parts is taken as the intended one.
        let way = self.ways.iter().min_by_key(|way| way.n_missing)?;
        let parts = way.stored.names.iter().zip(&way.parts);
        Some(Missing {
            row: self.expected,
            partly: way.n_missing < way.parts.len(),
            names: parts
                .filter(|(_, part)| part.is_none())
                .map(|(name, _)| name.clone())
                .collect(),
        })
    }
}
