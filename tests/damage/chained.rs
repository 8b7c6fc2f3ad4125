//! Damage of chained MTP heads, in random models whose drafts are accepted. All heads of these models were made to
//! predict the same tokens, so exchanged heads lose nothing.

use schemas::arch::nextn::EH_PROJ;
use schemas::gguf::Plan;
use schemas::report::FitCause;

use super::edit::{edit, names, noise, swap};
use super::kinds::Finder::{self, Baseline, Fit, Nothing};
use super::kinds::{Draft, Files, Kind, of};

/// Blocks of the heads of both models.
const STEP35: [u32; 2] = [4, 5];
const MIMO2: [u32; 3] = [3, 4, 5];

const fn step35(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Step35, name, found_by, damage)
}

const fn mimo2(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Mimo2, name, found_by, damage)
}

fn swap_blocks(plan: &mut Plan, a: u32, b: u32) {
    let [a, b] = [a, b].map(|block| format!("blk.{block}."));
    for name in names(plan, |name| name.starts_with(&a)) {
        swap(plan, &name, &name.replace(&a, &b));
    }
}

fn projection(plan: &mut Plan, block: u32, change: impl FnOnce(&mut [f32], usize)) {
    edit(plan, &format!("blk.{block}.{EH_PROJ}"), change);
}

pub(super) fn all() -> Vec<Kind> {
    vec![
        step35("two heads: nothing", Nothing, |_| {}),
        step35("two heads: swapped", Nothing, |f| {
            swap_blocks(&mut f.step35, STEP35[0], STEP35[1])
        }),
        step35("two heads: second one dead", Fit(FitCause::Zero), |f| {
            projection(&mut f.step35, STEP35[1], |x, _| x.fill(0.0))
        }),
        step35("two heads: second one untrained", Baseline, |f| {
            projection(&mut f.step35, STEP35[1], |x, _| noise(x, 13))
        }),
        mimo2("three heads: nothing", Nothing, |_| {}),
        mimo2("three heads: last two swapped", Nothing, |f| {
            swap_blocks(&mut f.mimo2, MIMO2[1], MIMO2[2])
        }),
        mimo2("three heads: first two swapped", Nothing, |f| {
            swap_blocks(&mut f.mimo2, MIMO2[0], MIMO2[1])
        }),
        mimo2("three heads: last one dead", Fit(FitCause::Zero), |f| {
            projection(&mut f.mimo2, MIMO2[2], |x, _| x.fill(0.0))
        }),
    ]
}
