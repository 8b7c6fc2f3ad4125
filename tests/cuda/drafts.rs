//! Every draft on an emulated device: tokens and logits of the target, and the drafts, are those of the CPU.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kernels::backend::Backend;
use kernels::cuda::Launching;
use runner::speculate::{Completion, Policy};
use schemas::arch::keys;

use super::emulated::Order;
use super::recorder::Recorder;
use super::setup::{Drafters, Family, Kind, assert_same, decode, request};

/// The target of all drafts but those that only another one can have.
const TARGET: &str = "qwen35";
const N_PREDICT: usize = 4;
const N_SEQ: usize = 2;
const N_DRAFT: usize = 3;

/// Returns the texts of one kind of drafts, and all drafts.
fn run<B: Backend>(family: &Family<B>, kind: Option<Kind>) -> (Vec<Completion>, Vec<Vec<u32>>) {
    let drafts = Rc::new(RefCell::new(Vec::new()));
    let recorder = |kind| Recorder {
        speculator: family.speculator(kind, N_SEQ, N_DRAFT),
        drafts: Rc::clone(&drafts),
    };
    let drafters = kind.map(|kind| -> Drafters<B> { vec![Box::new(recorder(kind))] });
    let mut driver = family.driver(drafters.unwrap_or_default(), Policy::First, N_SEQ, 1);
    let prompts = [(0..9).map(|i| i % 4 * 5).collect(), vec![7, 8]];
    let requests = prompts.map(|tokens| request(tokens, N_PREDICT));
    let found = decode(&mut driver, &requests, 0.0);
    drop(driver);
    (found, drafts.take())
}

#[test]
fn every_draft_is_that_of_the_cpu() {
    let Some((device, cuda)) = super::cuda(Order::Rising, Launching::Graphs) else {
        return;
    };
    let mut n_kinds = 0;
    for plan in fixtures::all() {
        let name = plan
            .metadata
            .need_str(keys::ARCHITECTURE)
            .unwrap()
            .to_owned();
        let family = Family::of(plan.clone());
        let kinds = family.kinds().into_iter();
        let is_tested = |kind: &Kind| match kind {
            Kind::Assistant(_) => true,
            _ => name == TARGET && kind.spec_type().spec().model.is_some(),
        };
        let kinds: Vec<Kind> = kinds.filter(is_tested).collect();
        if kinds.is_empty() {
            continue;
        }
        let on_device = Family::on(Arc::clone(&cuda), plan);
        let (plain, _) = run(&family, None);
        n_kinds += kinds.len();
        for kind in kinds {
            let place = format!("{name} {kind:?}");
            let (_, expected) = run(&family, Some(kind));
            let (texts, drafts) = run(&on_device, Some(kind));
            assert_same(&place, &plain, &texts);
            assert!(drafts == expected, "{place}: {drafts:?} {expected:?}");
            assert!(drafts.iter().any(|draft| !draft.is_empty()), "{place}");
        }
    }
    assert!(n_kinds > 8, "{n_kinds} kinds");
    assert!(device.graphs_run().0 > 0);
}
