//! Statistics of the entries of an importance matrix, as llama-imatrix defines them: of the mean of each
//! column and of its mean square, and in comparison with the same weight of the layer before.

use std::collections::BTreeMap;

use schemas::imatrix::{ImatrixEntry, ImatrixFile, Statistics};
use schemas::report::{ImatrixLayer, ImatrixStatistics};

/// Sums below this limit count as zero.
const SMALLEST_SUM: f64 = 1e-10;

/// Statistics of all entries and of all layers.
#[derive(Clone, Debug, Default)]
pub struct ImatrixSummary {
    /// The statistics of each entry by the name of its weight.
    pub entries: BTreeMap<String, ImatrixStatistics>,
    /// The statistics of the layers that have one before them.
    pub layers: Vec<ImatrixLayer>,
}

/// Computes the statistics of a file.
pub fn summarize(file: &ImatrixFile) -> ImatrixSummary {
    let heads = first_head(file);
    let own: BTreeMap<&str, Own> = file
        .entries
        .iter()
        .filter_map(|(name, entry)| Some((name.as_str(), Own::of(entry)?)))
        .collect();
    let mut entries = BTreeMap::new();
    let mut layers: BTreeMap<u32, LayerSums> = BTreeMap::new();
    for (&name, statistics) in &own {
        let layer = layer_of(name);
        let mut found = statistics.report();
        if let Some(layer) = layer {
            let sums = layers.entry(layer).or_default();
            sums.sum_sq += statistics.sum_sq;
            if let Some(before) = name_before(name, layer, heads, &own)
                && let Some(pair) = Pair::of(&file.entries[name], &file.entries[before])
            {
                pair.report(&mut found);
                let energies = [statistics, &own[before]].map(|own| (own.sum_sq, own.n_elements));
                found.gain = gain(energies);
                sums.add(&pair, energies);
            }
        }
        entries.insert(name.to_owned(), found);
    }
    let layers = layers
        .iter()
        .map(|(&layer, sums)| sums.report(layer, heads));
    ImatrixSummary {
        layers: layers.collect(),
        entries,
    }
}

impl ImatrixSummary {
    /// Returns the statistics in the order of the file.
    pub fn of_file(&self, file: &ImatrixFile) -> BTreeMap<String, Statistics> {
        let of = |name: &String| match self.entries.get(name) {
            Some(found) => in_file_order(found),
            None => Statistics::default(),
        };
        let names = file.entries.keys();
        names.map(|name| (name.clone(), of(name))).collect()
    }
}

/// Returns the values in the order of [`schemas::imatrix::STATISTIC_NAMES`]; those that do not exist are NaN.
fn in_file_order(found: &ImatrixStatistics) -> Statistics {
    let or_nan = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
    [
        found.sum_sq as f32,
        found.mean as f32,
        found.n_elements as f32,
        found.std_deviation as f32,
        found.skewness as f32,
        found.kurtosis as f32,
        or_nan(found.gain),
        or_nan(found.h_norm),
        or_nan(found.l2_dist),
        or_nan(found.cossim),
        or_nan(found.pearson),
        or_nan(found.covariance),
    ]
}

/// Statistics of one entry.
struct Own {
    sum_sq: f64,
    mean: f64,
    n_elements: usize,
    std_deviation: f64,
    skewness: f64,
    kurtosis: f64,
    h_norm: Option<f64>,
}

/// Iterates over the mean and the mean square of the columns of all matrices that had rows. Files without sums
/// have the mean square in place of the mean.
fn columns(entry: &ImatrixEntry) -> impl Iterator<Item = (f64, f64)> {
    let n_columns = entry.n_columns().max(1);
    let matrices = entry.squares.chunks(n_columns).zip(&entry.counts);
    matrices.enumerate().flat_map(move |(i, (squares, &n))| {
        let sums = entry.sums.as_ref().unwrap_or(&entry.squares);
        let sums = sums.iter().skip(i * n_columns);
        let part = squares
            .iter()
            .zip(sums)
            .map(move |(&square, &sum)| (f64::from(sum) / n as f64, f64::from(square) / n as f64));
        part.filter(move |(mean, square)| n > 0 && mean.is_finite() && square.is_finite())
    })
}

impl Own {
    /// Returns `None` if no matrix had rows.
    fn of(entry: &ImatrixEntry) -> Option<Own> {
        let n_elements = columns(entry).count();
        if n_elements == 0 {
            return None;
        }
        let n = n_elements as f64;
        let mean = columns(entry).map(|(mean, _)| mean).sum::<f64>() / n;
        let sum_sq: f64 = columns(entry).map(|(_, square)| square).sum();
        let energy: f64 = columns(entry).map(|(_, square)| square.max(0.0)).sum();
        let (mut m2, mut m3, mut m4, mut entropy) = (0.0, 0.0, 0.0, 0.0);
        for (value, square) in columns(entry) {
            let difference = value - mean;
            m2 += difference.powi(2) / n;
            m3 += difference.powi(3) / n;
            m4 += difference.powi(4) / n;
            let share = square.max(0.0) / energy;
            if share > SMALLEST_SUM {
                entropy -= share * share.log2();
            }
        }
        let varies = m2.sqrt() > SMALLEST_SUM;
        Some(Own {
            sum_sq,
            mean,
            n_elements,
            std_deviation: m2.sqrt(),
            skewness: if varies { m3 / m2.powf(1.5) } else { 0.0 },
            kurtosis: if varies { m4 / (m2 * m2) - 3.0 } else { 0.0 },
            h_norm: (n_elements > 1).then(|| 100.0 * entropy / n.log2()),
        })
    }

    fn report(&self) -> ImatrixStatistics {
        ImatrixStatistics {
            sum_sq: self.sum_sq,
            mean: self.mean,
            n_elements: self.n_elements,
            std_deviation: self.std_deviation,
            skewness: self.skewness,
            kurtosis: self.kurtosis,
            gain: None,
            h_norm: self.h_norm,
            l2_dist: None,
            cossim: None,
            pearson: None,
            covariance: None,
        }
    }
}

/// Sums over pairs of column means: of a weight, and of the same weight in the layer before.
#[derive(Clone, Copy, Default)]
struct Pair {
    n: usize,
    dot: f64,
    norms: [f64; 2],
    distance: f64,
    covariance: f64,
    variances: [f64; 2],
}

impl Pair {
    /// Compares means, or mean squares if one of the entries has no sums. Returns `None` if the entries differ
    /// in size.
    fn of(entry: &ImatrixEntry, before: &ImatrixEntry) -> Option<Pair> {
        let has_means = entry.sums.is_some() && before.sums.is_some();
        let values = [entry, before].map(|entry| means(entry, has_means));
        let [current, previous] = &values;
        if current.len() != previous.len() {
            return None;
        }
        let pairs = || {
            let pairs = current.iter().zip(previous);
            let pairs = pairs.map(|(&a, &b)| (f64::from(a), f64::from(b)));
            pairs.filter(|(a, b)| a.is_finite() && b.is_finite())
        };
        let n = pairs().count();
        if n == 0 {
            return None;
        }
        let mean_a = pairs().map(|(a, _)| a).sum::<f64>() / n as f64;
        let mean_b = pairs().map(|(_, b)| b).sum::<f64>() / n as f64;
        let mut pair = Pair {
            n,
            ..Pair::default()
        };
        for (a, b) in pairs() {
            pair.dot += a * b;
            pair.norms[0] += a * a;
            pair.norms[1] += b * b;
            pair.distance += (a - b) * (a - b);
            pair.covariance += (a - mean_a) * (b - mean_b);
            pair.variances[0] += (a - mean_a) * (a - mean_a);
            pair.variances[1] += (b - mean_b) * (b - mean_b);
        }
        Some(pair)
    }

    fn report(&self, found: &mut ImatrixStatistics) {
        found.l2_dist = Some(self.distance.sqrt());
        found.cossim = cosine(self.dot, self.norms);
        found.pearson = cosine(self.covariance, self.variances);
        found.covariance = (self.n > 1).then(|| self.covariance / self.n as f64);
    }

    fn add(&mut self, other: &Pair) {
        self.n += other.n;
        self.dot += other.dot;
        self.distance += other.distance;
        self.covariance += other.covariance;
        for i in 0..2 {
            self.norms[i] += other.norms[i];
            self.variances[i] += other.variances[i];
        }
    }
}

/// Returns the mean or the mean square of each column; NaN for matrices without rows.
fn means(entry: &ImatrixEntry, has_means: bool) -> Vec<f32> {
    let values = match &entry.sums {
        Some(sums) if has_means => sums,
        _ => &entry.squares,
    };
    let matrices = values.chunks(entry.n_columns().max(1)).zip(&entry.counts);
    let mean = |(values, &n): (&[f32], &u64)| {
        let factor = if n > 0 { 1.0 / n as f32 } else { f32::NAN };
        values.iter().map(|x| x * factor).collect::<Vec<f32>>()
    };
    matrices.flat_map(mean).collect()
}

/// Returns `dot` divided by the lengths; `None` if both are 0, else 0 if one is.
fn cosine(dot: f64, squares: [f64; 2]) -> Option<f64> {
    match squares.map(|square| square > 0.0) {
        [false, false] => None,
        [true, true] => Some((dot / (squares[0].sqrt() * squares[1].sqrt())).clamp(-1.0, 1.0)),
        _ => Some(0.0),
    }
}

/// Returns the root of the mean energy relative to that of the layer before: sums and numbers of elements.
fn gain([(sum, n), (sum_before, n_before)]: [(f64, usize); 2]) -> Option<f64> {
    match sum_before > SMALLEST_SUM {
        true => Some((sum / n as f64).sqrt() / (sum_before / n_before as f64).sqrt()),
        false => (sum <= SMALLEST_SUM).then_some(1.0),
    }
}

/// Sums over the entries of a layer.
#[derive(Default)]
struct LayerSums {
    sum_sq: f64,
    pair: Pair,
    /// Energies and elements of the entries that have one before them, and of those.
    energies: [(f64, usize); 2],
}

impl LayerSums {
    fn add(&mut self, pair: &Pair, energies: [(f64, usize); 2]) {
        self.pair.add(pair);
        if energies[1].0 > SMALLEST_SUM {
            for (sums, (energy, n)) in self.energies.iter_mut().zip(energies) {
                *sums = (sums.0 + energy, sums.1 + n);
            }
        }
    }

    fn report(&self, layer: u32, heads: Option<u32>) -> ImatrixLayer {
        let has_pair = self.pair.n > 0;
        let [(_, n), (before, n_before)] = self.energies;
        let has_gain = n > 0 && n_before > 0 && before > 0.0;
        ImatrixLayer {
            layer,
            is_head: heads.is_some_and(|heads| layer >= heads),
            sum_sq: self.sum_sq,
            gain: if has_gain { gain(self.energies) } else { None },
            l2_dist: has_pair.then(|| self.pair.distance.sqrt()),
            cossim: cosine(self.pair.dot, self.pair.norms),
            pearson: cosine(self.pair.covariance, self.pair.variances),
            covariance: has_pair.then(|| self.pair.covariance / self.pair.n as f64),
        }
    }
}

/// Returns N of `blk.N.` in a name.
fn layer_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Returns the first layer that is an MTP head.
fn first_head(file: &ImatrixFile) -> Option<u32> {
    let layers = || file.entries.keys().filter_map(|name| layer_of(name));
    match file.n_heads {
        0 => {
            let heads = file.entries.keys().filter(|name| name.contains(".nextn."));
            heads.filter_map(|name| layer_of(name)).min()
        }
        n => layers().max().map(|last| (last + 1).saturating_sub(n)),
    }
}

/// Returns the name of the same weight in the nearest layer before that has it. The layers of the trunk and the
/// heads are compared among themselves.
fn name_before<'a>(
    name: &str,
    layer: u32,
    heads: Option<u32>,
    own: &BTreeMap<&'a str, Own>,
) -> Option<&'a str> {
    let first = match heads {
        Some(heads) if layer >= heads => heads,
        _ => 0,
    };
    let rest = name.strip_prefix(&format!("blk.{layer}"))?;
    (first..layer).rev().find_map(|before| {
        let name = format!("blk.{before}{rest}");
        Some(*own.get_key_value(name.as_str())?.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(squares: &[f32], sums: &[f32], counts: &[u64]) -> ImatrixEntry {
        ImatrixEntry {
            squares: squares.to_vec(),
            sums: Some(sums.to_vec()),
            counts: counts.to_vec(),
        }
    }

    fn summary(entries: &[(&str, ImatrixEntry)], n_heads: u32) -> ImatrixSummary {
        let entries = entries.iter();
        summarize(&ImatrixFile {
            n_heads,
            entries: entries
                .map(|(name, entry)| ((*name).to_owned(), entry.clone()))
                .collect(),
            ..ImatrixFile::default()
        })
    }

    /// Means 1 and 3, energies 2 and 6, computed by hand.
    #[test]
    fn statistics_by_hand() {
        let a = entry(&[4.0, 12.0], &[2.0, 6.0], &[2]);
        let b = entry(&[16.0, 16.0], &[6.0, 2.0], &[2]);
        let found = summary(&[("blk.0.x.weight", a), ("blk.1.x.weight", b)], 0);
        let [first, second] = ["blk.0.x.weight", "blk.1.x.weight"].map(|name| &found.entries[name]);
        assert_eq!((first.sum_sq, first.mean, first.n_elements), (8.0, 2.0, 2));
        assert_eq!(
            (first.std_deviation, first.skewness, first.kurtosis),
            (1.0, 0.0, -2.0)
        );
        let entropy = -(0.25f64 * 0.25f64.log2() + 0.75 * 0.75f64.log2());
        assert!((first.h_norm.unwrap() - 100.0 * entropy).abs() < 1e-9);
        assert_eq!((first.gain, first.cossim), (None, None));
        assert_eq!(second.gain, Some(2f64.sqrt()));
        assert_eq!(second.l2_dist, Some(8f64.sqrt()));
        assert!((second.cossim.unwrap() - 0.6).abs() < 1e-9);
        assert!((second.pearson.unwrap() + 1.0).abs() < 1e-9);
        assert_eq!(second.covariance, Some(-1.0));
        assert_eq!(found.layers.len(), 2);
        assert_eq!(found.layers[1].gain, second.gain);
    }

    #[test]
    fn heads_are_compared_with_heads_and_gaps_are_skipped() {
        let names = [
            "blk.0.x.weight",
            "blk.2.x.weight",
            "blk.3.x.weight",
            "blk.4.x.weight",
        ];
        let one = || entry(&[1.0, 1.0], &[1.0, 1.0], &[1]);
        let found = summary(&names.map(|name| (name, one())), 2);
        let has_gain = names.map(|name| found.entries[name].gain.is_some());
        assert_eq!(has_gain, [false, true, false, true]);
    }

    /// A matrix without rows does not count.
    #[test]
    fn unused_experts_are_left_out() {
        let found = summary(
            &[(
                "a",
                entry(&[1.0, 2.0, 0.0, 0.0], &[1.0, 1.0, 0.0, 0.0], &[1, 0]),
            )],
            0,
        );
        assert_eq!(found.entries["a"].n_elements, 2);
        assert_eq!(found.entries["a"].mean, 1.0);
        let none = summary(&[("a", entry(&[0.0], &[0.0], &[0]))], 0);
        assert!(none.entries.is_empty());
    }
}
