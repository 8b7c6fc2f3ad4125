//! [`Slots`]: the state of each slot, as `/slots` reports it.

use std::sync::{Mutex, PoisonError};

/// State of all slots.
#[derive(Debug)]
pub(crate) struct Slots(Mutex<Vec<SlotState>>);

/// State of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// No job.
    Idle,
    /// Runs a job.
    Busy {
        /// Number of the job since the start of the server.
        job: usize,
        /// Prompt length in tokens.
        n_prompt: usize,
    },
}

impl Slots {
    pub(crate) fn new(n_slots: usize) -> Slots {
        Slots(Mutex::new(vec![SlotState::Idle; n_slots]))
    }

    /// Sets the state of a slot.
    pub(crate) fn set(&self, slot: usize, state: SlotState) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[slot] = state;
    }

    /// Returns the states of all slots.
    pub(crate) fn states(&self) -> Vec<SlotState> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the number of slots that run a job.
    pub(crate) fn n_busy(&self) -> usize {
        let states = self.states();
        states.iter().filter(|&&s| s != SlotState::Idle).count()
    }
}
