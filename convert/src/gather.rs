//! Which stored tensors make which tensors of the file, and in which order: that of the
//! checkpoint, where the last part of a tensor stands.

use std::collections::HashMap;
use std::mem;

use schemas::arch::{Expected, Hparams, Stored};

use crate::checkpoint::StoredTensor;
use crate::error::{Error, Names};

/// The tensors of a checkpoint, by what they make.
pub(crate) struct Gathered<'a> {
    /// Tensors of the file, in its order.
    pub(crate) found: Vec<Found<'a>>,
    /// Rows of the table that are not whole.
    pub(crate) missing: Vec<Missing<'a>>,
    /// Stored tensors that no row of the table takes.
    pub(crate) unused: Names,
}

/// A tensor of the file, and where its values are.
pub(crate) struct Found<'a> {
    pub(crate) row: &'a Expected,
    /// How the checkpoint stores it.
    pub(crate) way: Stored,
    /// The stored tensor, or one for each expert.
    pub(crate) parts: Vec<&'a StoredTensor>,
}

/// A row of the table without a tensor.
pub(crate) struct Missing<'a> {
    pub(crate) row: &'a Expected,
    /// Some of its parts are there.
    pub(crate) partly: bool,
    /// The stored tensors that it lacks.
    pub(crate) names: Vec<String>,
}

/// Joins the rows of a table with a checkpoint's tensors.
///
/// # Errors
/// A tensor is stored in two ways.
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

/// The stacks of a layer's experts, once all are whole: the peer writes them together.
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

/// Where a stored tensor belongs.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    way: usize,
    part: usize,
}

/// A row of the table, as far as its tensors have been seen.
struct Row<'a> {
    expected: &'a Expected,
    ways: Vec<Way<'a>>,
    /// Set once all parts of a way are there.
    whole: Option<Whole<'a>>,
}

/// Which way is whole, and the last of its parts.
#[derive(Clone, Copy)]
struct Whole<'a> {
    way: usize,
    last: &'a StoredTensor,
}

/// One way of storing a row.
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

    /// Whether each expert can have a tensor of its own.
    fn is_stack(&self) -> bool {
        self.ways.iter().any(|way| way.parts.len() > 1)
    }

    /// Takes a part; whether the row is now whole.
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

    /// The tensor of a whole row, the first time it is asked for.
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
        // The way of which most is there is the one that was meant.
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
