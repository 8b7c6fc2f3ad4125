//! Caches recurring sequences of kernels as device graphs.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::device::{Device, DeviceError, Graph, Launch};

/// Maximum number of cached sequences. Most prompts have some that do not recur.
const MOST_KNOWN: usize = 256;

/// Minimum number of kernels for which a graph pays.
const LEAST: usize = 4;

/// Sequences seen so far, by the hash of their kernels and grids.
#[derive(Default)]
pub(crate) struct Graphs {
    known: HashMap<u64, Known>,
    /// Sequences run so far.
    n_run: u64,
    /// True if the device has failed to create a graph.
    are_refused: bool,
}

struct Known {
    /// Number of the last run.
    last: u64,
    /// The graph with its current arguments; `None` if the sequence has occurred only once.
    made: Option<(Graph, Vec<Launch>)>,
}

impl Graphs {
    /// Launches kernels one after another, as a graph if the sequence has occurred before.
    ///
    /// # Safety
    /// As for [`Device::launch`], for each kernel.
    pub(crate) unsafe fn run(
        &mut self,
        device: &dyn Device,
        launches: &[Launch],
    ) -> Result<(), DeviceError> {
        let one_by_one = || {
            let mut launches = launches.iter();
            // SAFETY: the caller's promise.
            launches.try_for_each(|launch| unsafe { device.launch(launch) })
        };
        if launches.len() < LEAST || self.are_refused {
            return one_by_one();
        }
        self.n_run += 1;
        let last = self.n_run;
        let key = shape(launches);
        let Some(known) = self.known.get_mut(&key) else {
            self.make_room(device);
            let made = None;
            self.known.insert(key, Known { last, made });
            return one_by_one();
        };
        known.last = last;
        let Some((graph, has)) = &mut known.made else {
            // SAFETY: the caller's promise.
            match unsafe { device.graph(launches) } {
                Ok(graph) => {
                    known.made = Some((graph, launches.to_vec()));
                    // SAFETY: as above.
                    return unsafe { device.run(graph) };
                }
                Err(_) => {
                    self.are_refused = true;
                    return one_by_one();
                }
            }
        };
        let is_alike = |(a, b): (&Launch, &Launch)| a.kernel == b.kernel && a.grid == b.grid;
        if has.len() != launches.len() || !has.iter().zip(launches).all(is_alike) {
            // A different sequence with the same hash.
            return one_by_one();
        }
        for (i, (has, wanted)) in has.iter_mut().zip(launches).enumerate() {
            if has.args != wanted.args {
                // SAFETY: the caller's promise.
                unsafe { device.change(*graph, i, wanted)? };
                *has = *wanted;
            }
        }
        // SAFETY: as above.
        unsafe { device.run(*graph) }
    }

    /// If there are too many sequences, drops the least recently used half.
    fn make_room(&mut self, device: &dyn Device) {
        if self.known.len() < MOST_KNOWN {
            return;
        }
        let mut times: Vec<u64> = self.known.values().map(|known| known.last).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        self.known.retain(|_, known| {
            let stays = known.last >= middle;
            if let (false, Some((graph, _))) = (stays, &known.made) {
                device.forget(*graph);
            }
            stays
        });
    }

    /// Drops all sequences.
    pub(crate) fn forget(&mut self, device: &dyn Device) {
        for (graph, _) in self.known.drain().filter_map(|(_, known)| known.made) {
            device.forget(graph);
        }
    }
}

/// Hashes the properties that do not change between runs: kernels and grids.
fn shape(launches: &[Launch]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for launch in launches {
        (launch.kernel, launch.grid).hash(&mut hasher);
    }
    hasher.finish()
}
