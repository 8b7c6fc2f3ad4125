//! Maps stored tensors to tensors of the file and determines their order: that of the checkpoint, by the
//! last part of each tensor.

use std::collections::HashMap;
use std::mem;

use schemas::arch::{Expected, Hparams, StoredForm};

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
    pub(crate) expected: &'a Expected,
    /// Form in which the checkpoint stores it.
    pub(crate) form: StoredForm,
    /// The stored tensor, or one per expert.
    pub(crate) tensors: Vec<&'a StoredTensor>,
}

/// A table entry with missing tensors.
pub(crate) struct Missing<'a> {
    pub(crate) expected: &'a Expected,
    /// True if some of its parts exist.
    pub(crate) partly: bool,
    /// The missing stored tensors.
    pub(crate) names: Vec<String>,
}

/// Matches table entries with a checkpoint's tensors. Stacks of experts are sorted by name, or in the order
/// of the table.
///
/// # Errors
/// A tensor is stored in two forms.
pub(crate) fn gather<'a>(
    expected: &'a [Expected],
    hparams: &Hparams,
    stored: &'a [StoredTensor],
    experts_in_table_order: bool,
) -> Result<Gathered<'a>, Error> {
    let mut entries: Vec<Entry<'a>> = expected
        .iter()
        .filter(|entry| !entry.spec.hf.is_empty())
        .map(|entry| Entry::new(entry, hparams))
        .collect();
    let mut slots: HashMap<String, Vec<Slot>> = HashMap::new();
    for (entry, Entry { forms, .. }) in entries.iter().enumerate() {
        for (form, Form { stored, .. }) in forms.iter().enumerate() {
            for (part, name) in stored.names.iter().enumerate() {
                let slot = Slot { entry, form, part };
                slots.entry(name.clone()).or_default().push(slot);
            }
        }
    }
    let mut found = Vec::new();
    let mut unused = Names(Vec::new());
    for tensor in stored {
        let Some(slots) = slots.get(&tensor.text_name()) else {
            unused.0.push(tensor.name.clone());
            continue;
        };
        for &slot in slots {
            let entry = &mut entries[slot.entry];
            if !entry.take(tensor, slot)? {
                continue;
            }
            match entry.is_stack() {
                false => found.extend(entry.found()),
                true => {
                    let mut stacks = complete_stacks(&mut entries, slot.entry);
                    if !experts_in_table_order {
                        stacks.sort_by(|a, b| a.form.names[0].cmp(&b.form.names[0]));
                    }
                    found.extend(stacks);
                }
            }
        }
    }
    Ok(Gathered {
        found,
        missing: entries.iter().filter_map(Entry::missing).collect(),
        unused,
    })
}

/// Returns the expert stacks of a layer, once all are complete: llama.cpp's converter writes them together.
fn complete_stacks<'a>(entries: &mut [Entry<'a>], entry: usize) -> Vec<Found<'a>> {
    let layer = entries[entry].expected.layer;
    let stacks = || |entry: &&mut Entry<'a>| entry.is_stack() && entry.expected.layer == layer;
    if !entries
        .iter_mut()
        .filter(stacks())
        .all(|entry| entry.complete.is_some())
    {
        return Vec::new();
    }
    let stacks = entries.iter_mut().filter(stacks());
    stacks.filter_map(Entry::found).collect()
}

/// Table entry, form and part that a stored tensor belongs to.
#[derive(Clone, Copy)]
struct Slot {
    entry: usize,
    form: usize,
    part: usize,
}

/// A table entry with the tensors seen so far.
struct Entry<'a> {
    expected: &'a Expected,
    forms: Vec<Form<'a>>,
    /// Set once all parts of a form have been seen.
    complete: Option<Complete<'a>>,
}

/// The complete form, and the last of its parts.
#[derive(Clone, Copy)]
struct Complete<'a> {
    form: usize,
    last: &'a StoredTensor,
}

/// One form of storing an entry.
struct Form<'a> {
    stored: StoredForm,
    parts: Vec<Option<&'a StoredTensor>>,
    n_missing: usize,
}

impl<'a> Entry<'a> {
    fn new(expected: &'a Expected, hparams: &Hparams) -> Entry<'a> {
        let form = |stored: StoredForm| Form {
            parts: vec![None; stored.names.len()],
            n_missing: stored.names.len(),
            stored,
        };
        Entry {
            expected,
            forms: expected
                .stored_forms(hparams)
                .into_iter()
                .map(form)
                .collect(),
            complete: None,
        }
    }

    /// Returns true if each expert may have its own tensor.
    fn is_stack(&self) -> bool {
        self.forms.iter().any(|form| form.parts.len() > 1)
    }

    /// Adds a part; returns true if the entry is now complete.
    fn take(&mut self, tensor: &'a StoredTensor, slot: Slot) -> Result<bool, Error> {
        if let Some(Complete { last, .. }) = self.complete {
            return Err(Error::DuplicateTensor {
                path: tensor.path(),
                tensor: tensor.name.clone(),
                first: last.name.clone(),
                first_path: last.path(),
            });
        }
        let form = &mut self.forms[slot.form];
        form.parts[slot.part] = Some(tensor);
        form.n_missing -= 1;
        if form.n_missing == 0 {
            self.complete = Some(Complete {
                form: slot.form,
                last: tensor,
            });
        }
        Ok(self.complete.is_some())
    }

    /// Returns the tensor of a complete entry, once.
    fn found(&mut self) -> Option<Found<'a>> {
        let form = &mut self.forms[self.complete?.form];
        let tensors: Option<Vec<_>> = mem::take(&mut form.parts).into_iter().collect();
        let tensors = tensors.filter(|tensors| !tensors.is_empty());
        tensors.map(|tensors| Found {
            expected: self.expected,
            form: form.stored.clone(),
            tensors,
        })
    }

    fn missing(&self) -> Option<Missing<'a>> {
        if self.complete.is_some() {
            return None;
        }
        // The form with the fewest missing parts is taken as the intended one.
        let form = self.forms.iter().min_by_key(|form| form.n_missing)?;
        let parts = form.stored.names.iter().zip(&form.parts);
        Some(Missing {
            expected: self.expected,
            partly: form.n_missing < form.parts.len(),
            names: parts
                .filter(|(_, part)| part.is_none())
                .map(|(name, _)| name.clone())
                .collect(),
        })
    }
}
