//! The choice of one type per group with the smallest sum of costs within a number of bytes.

/// A type of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) size_bytes: u64,
    pub(super) cost: f64,
}

/// Limit of a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    /// Largest number of bytes.
    Bytes(u64),
    /// Largest sum of costs; the choice has the fewest bytes.
    Cost(f64),
}

/// Steps in which bytes are counted. Sizes are rounded up, so a choice never exceeds the limit; the bytes that
/// rounding leaves are given to the groups that gain most.
const N_STEPS: u64 = 1 << 15;

/// Chooses an item of each group; `None` if no choice is within the limit. Equal inputs give equal choices.
pub(super) fn choose(groups: &[Vec<Item>], limit: Limit) -> Option<Vec<usize>> {
    let largest: u64 = groups
        .iter()
        .map(|items| items.iter().map(|item| item.size_bytes).max().unwrap_or(0))
        .sum();
    let smallest: u64 = groups
        .iter()
        .map(|items| items.iter().map(|item| item.size_bytes).min().unwrap_or(0))
        .sum();
    let budget = match limit {
        Limit::Bytes(bytes) if bytes < smallest => return None,
        Limit::Bytes(bytes) => bytes.min(largest),
        Limit::Cost(_) => largest,
    };
    // Only the bytes above the smallest choice are counted.
    let spare = budget - smallest;
    let step = (spare / N_STEPS).max(1);
    let n = (spare / step) as usize + 1;
    // Costs of the best choices by the number of steps they may take, and the choice of each group.
    let mut best = vec![0.0; n];
    let mut chosen: Vec<Vec<u8>> = Vec::new();
    for items in groups {
        let least = items.iter().map(|item| item.size_bytes).min()?;
        let mut next = vec![f64::INFINITY; n];
        let mut choices = vec![0u8; n];
        for (i, item) in items.iter().enumerate() {
            let taken = (item.size_bytes - least).div_ceil(step) as usize;
            for at in taken..n {
                let cost = best[at - taken] + item.cost;
                if cost < next[at] {
                    next[at] = cost;
                    choices[at] = i as u8;
                }
            }
        }
        best = next;
        chosen.push(choices);
    }
    let mut at = match limit {
        Limit::Bytes(_) => n - 1,
        Limit::Cost(cost) => best.iter().position(|found| *found <= cost)?,
    };
    let mut choice = vec![0; groups.len()];
    for (g, items) in groups.iter().enumerate().rev() {
        let i = chosen[g][at] as usize;
        let least = items.iter().map(|item| item.size_bytes).min()?;
        choice[g] = i;
        at -= (items[i].size_bytes - least).div_ceil(step) as usize;
    }
    if let Limit::Bytes(bytes) = limit {
        fill(groups, &mut choice, bytes);
    }
    Some(choice)
}

/// Exchanges single items for better ones while bytes are left, the largest gain first.
fn fill(groups: &[Vec<Item>], choice: &mut [usize], bytes: u64) {
    loop {
        let chosen = groups.iter().zip(choice.iter()).map(|(items, i)| items[*i]);
        let left = bytes.saturating_sub(chosen.map(|item| item.size_bytes).sum());
        let mut best: Option<(f64, usize, usize)> = None;
        for (g, items) in groups.iter().enumerate() {
            let own = items[choice[g]];
            for (i, item) in items.iter().enumerate() {
                let gain = own.cost - item.cost;
                let fits = item.size_bytes <= own.size_bytes + left;
                if fits && gain > 0.0 && best.is_none_or(|(most, ..)| gain > most) {
                    best = Some((gain, g, i));
                }
            }
        }
        match best {
            Some((_, g, i)) => choice[g] = i,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with all choices.
    fn exhaustive(groups: &[Vec<Item>], bytes: u64) -> Option<f64> {
        let mut best: Option<f64> = None;
        let n: usize = groups.iter().map(Vec::len).product();
        for mut code in 0..n {
            let (mut size, mut cost) = (0, 0.0);
            for items in groups {
                let item = items[code % items.len()];
                code /= items.len();
                size += item.size_bytes;
                cost += item.cost;
            }
            if size <= bytes && best.is_none_or(|found| cost < found) {
                best = Some(cost);
            }
        }
        best
    }

    fn example() -> Vec<Vec<Item>> {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut group = |_| {
            let mut size_bytes = 10 + random(20);
            let mut cost = 1.0 + random(100) as f64;
            let mut item = |_| {
                size_bytes += 1 + random(30);
                cost /= 1.0 + random(4) as f64;
                Item { size_bytes, cost }
            };
            (0..4).map(&mut item).collect()
        };
        (0..6).map(&mut group).collect()
    }

    #[test]
    fn choices_are_optimal() {
        let groups = example();
        let sum = |choice: &[usize]| {
            let items = groups.iter().zip(choice).map(|(items, &i)| items[i]);
            items.fold((0, 0.0), |(size, cost), item| {
                (size + item.size_bytes, cost + item.cost)
            })
        };
        let mut n_found = 0;
        for bytes in (100..900).step_by(13) {
            let found = choose(&groups, Limit::Bytes(bytes));
            let expected = exhaustive(&groups, bytes);
            assert_eq!(found.is_some(), expected.is_some(), "{bytes}");
            if let (Some(found), Some(expected)) = (found, expected) {
                let (size, cost) = sum(&found);
                assert!(size <= bytes);
                assert!(
                    (cost - expected).abs() < 1e-9,
                    "{bytes}: {cost}, {expected}"
                );
                // The fewest bytes with this cost.
                let least = choose(&groups, Limit::Cost(cost + 1e-9)).unwrap();
                assert!(sum(&least).0 <= size && sum(&least).1 <= cost + 1e-9);
                n_found += 1;
            }
        }
        assert!(n_found > 20);
        assert_eq!(choose(&groups, Limit::Cost(-1.0)), None);
    }

    #[test]
    fn rounding_leaves_no_bytes_that_would_gain() {
        let big = 1u64 << 40;
        let item = |size_bytes, cost| Item { size_bytes, cost };
        let groups = vec![vec![item(big, 1.0), item(2 * big + 1, 0.5)]; 3];
        let found = choose(&groups, Limit::Bytes(5 * big + 2)).unwrap();
        assert_eq!(found.iter().sum::<usize>(), 2);
    }
}
