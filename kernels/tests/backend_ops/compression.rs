//! Compression of positions, and the choice of compressed positions.

use std::ops::Range;

use kernels::backend::{
    AttentionInput, AttentionShape, Backend, CacheShape, CacheType, CompressionInput,
    CompressionShape, GatheredRows, IndexerInput, IndexerShape, Largest, SourceRow,
};
use schemas::gguf::DType;

use crate::Case;
use crate::cases::{EXACT, FUNCTION_TOLERANCE};
use crate::data::{Random, download, f64_row, load, upload, weight};

/// The source of a row of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Missing,
    Batch,
    Kept,
}

/// Groups whose rows are missing at first, then kept, then in the batch.
pub(crate) fn compress<B: Backend + 'static>(
    random: &mut Random,
    n: usize,
    shape: CompressionShape,
) -> Case<B> {
    let (width, dim, ratio, n_source) = (shape.width(), shape.dim, shape.ratio, shape.n_source());
    let (ape_data, ape) = weight(random, DType::F32, ratio, width);
    let mut groups =
        || -> Vec<Vec<Vec<f32>>> { (0..n).map(|_| random.rows(n_source, width)).collect() };
    let (kv, gate) = (groups(), groups());
    let origins: Vec<Vec<Origin>> = (0..n)
        .map(|_| {
            // The last row is never missing.
            let cut = random.below(n_source);
            let end = cut + random.below(n_source - cut + 1);
            let origin = |i: usize| match i {
                i if i < cut => Origin::Missing,
                i if i < end => Origin::Kept,
                _ => Origin::Batch,
            };
            (0..n_source).map(origin).collect()
        })
        .collect();
    let formula = |item: usize| {
        let column = |column: usize| {
            let (mut sum, mut total) = (0.0, 0.0);
            for (i, origin) in origins[item].iter().enumerate() {
                if *origin == Origin::Missing {
                    continue;
                }
                let at = i / ratio * dim + column;
                let score = f64::from(gate[item][i][at]) + f64::from(ape[i % ratio * width + at]);
                sum += score.exp();
                total += score.exp() * f64::from(kv[item][i][at]);
            }
            total / sum
        };
        (0..dim).map(column).collect()
    };
    Case {
        name: format!("compress {n} groups, {shape:?}"),
        tolerance: FUNCTION_TOLERANCE,
        expected: (0..n).map(formula).collect(),
        run: Box::new(move |backend, items| {
            let ape = load(backend, &ape_data);
            let n_row = items.len() * n_source;
            let rows = |part: &[Vec<Vec<f32>>], wanted: Origin| -> Vec<f32> {
                // Rows that nothing may read are NaN.
                let row = |item: usize, i: usize| match origins[item][i] == wanted {
                    true => part[item][i].clone(),
                    false => vec![f32::NAN; width],
                };
                let places = items
                    .iter()
                    .flat_map(|&item| (0..n_source).map(move |i| (item, i)));
                places.flat_map(|(item, i)| row(item, i)).collect()
            };
            let [before, now] = [Origin::Kept, Origin::Batch]
                .map(|origin| [&kv, &gate].map(|part| upload(backend, &rows(part, origin))));
            // Kept rows are in the opposite order.
            let pairs: Vec<_> = (0..n_row).map(|row| (row, n_row - 1 - row)).collect();
            let mut kept = backend.buffer(2 * n_row * width);
            let [old_kv, old_gate] = &before;
            backend.keep_rows(old_kv, old_gate, width, &pairs, &mut kept);
            let origins = items.iter().flat_map(|&item| origins[item].clone());
            let sources: Vec<SourceRow> = origins
                .enumerate()
                .map(|(row, origin)| match origin {
                    Origin::Missing => SourceRow::Missing,
                    Origin::Batch => SourceRow::Batch(row),
                    Origin::Kept => SourceRow::Kept(n_row - 1 - row),
                })
                .collect();
            let [kv, gate] = &now;
            let input = CompressionInput {
                kv,
                gate,
                kept: &kept,
                ape: &ape,
            };
            let mut out = backend.buffer(items.len() * dim);
            backend.compress(&shape, input, &sources, &mut out);
            download(backend, &out, items.len(), dim)
        }),
    }
}

/// Sizes of a [`choose_rows`] case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Queries.
    pub(crate) n: usize,
    /// Rows of the first cache that each query attends to.
    pub(crate) n_first: usize,
    /// Visible rows of the second cache, at most.
    pub(crate) n_visible: usize,
}

/// The choice of rows by integers, so that many scores are equal, and the rows that are gathered by it, each read by
/// attention to a single key.
pub(crate) fn choose_rows<B: Backend + 'static>(
    random: &mut Random,
    sizes: Sizes,
    shape: IndexerShape,
    element: CacheType,
) -> Case<B> {
    let Sizes {
        n,
        n_first,
        n_visible,
    } = sizes;
    let IndexerShape {
        n_head,
        head_dim,
        n_chosen,
    } = shape;
    let mut integers = |n: usize, dim: usize, largest: f32| -> Vec<Vec<f32>> {
        let round = |row: Vec<f32>| row.into_iter().map(|x| (x * largest).round()).collect();
        random.rows(n, dim).into_iter().map(round).collect()
    };
    let q = integers(n, n_head * head_dim, 1.0);
    let weights = integers(n, n_head, 2.0);
    // Every type of cache represents these exactly: the scale of a block with 127 is 1.
    let mut keys = |n: usize| {
        let mut keys = integers(n, head_dim, 3.0);
        let blocks = keys.iter_mut().flat_map(|row| row.chunks_mut(32));
        blocks.for_each(|block| block[0] = 127.0);
        keys
    };
    let first = keys(n * n_first);
    let second: Vec<Vec<Vec<f32>>> = (0..n).map(|_| keys(n_visible)).collect();
    // The first query sees all rows, the second one none.
    let n_seen: Vec<usize> = (0..n)
        .map(|i| match i {
            0 => n_visible,
            1 => 0,
            _ => random.below(n_visible + 1),
        })
        .collect();
    let chosen = |item: usize| -> Vec<usize> {
        let score = |key: &Vec<f32>| -> f64 {
            let heads = q[item].chunks(head_dim).zip(&weights[item]);
            let of_head = |(q, weight): (&[f32], &f32)| {
                let dot: f32 = q.iter().zip(key).map(|(q, k)| q * k).sum();
                f64::from(dot.max(0.0) * weight)
            };
            heads.map(of_head).sum()
        };
        let scores: Vec<f64> = second[item][..n_seen[item]].iter().map(score).collect();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
        order.truncate(n_chosen);
        order.sort_unstable();
        order
    };
    let n_gathered = move |item: usize, n_seen: &[usize]| n_first + n_seen[item].min(n_chosen);
    let width = n_chosen + (n_first + n_chosen) * head_dim;
    let formula = |item: usize| {
        let chosen = chosen(item);
        let mut all: Vec<f64> = chosen.iter().map(|&row| row as f64).collect();
        all.resize(n_chosen, 0.0);
        let first = &first[item * n_first..][..n_first];
        let rows = first
            .iter()
            .chain(chosen.iter().map(|&row| &second[item][row]));
        all.extend(rows.flat_map(|row| f64_row(row)));
        all.resize(width, 0.0);
        all
    };
    Case {
        name: format!("choose_rows {sizes:?}, {shape:?}, {element}"),
        tolerance: EXACT,
        expected: (0..n).map(formula).collect(),
        run: Box::new(move |backend, items| {
            let n = items.len();
            let cache = |n_rows: usize| {
                backend.cache(&CacheShape {
                    n_rows,
                    n_head: 1,
                    head_dim,
                    element,
                })
            };
            // Rows of each query have a place that depends on the batch; those between them are not written.
            let (first_room, second_room) = (n_first + n % 3, n_visible + 1 + n % 4);
            let (mut first_cache, mut second_cache) =
                (cache(1 + n * first_room), cache(2 + n * second_room));
            let store = |rows: &[Vec<f32>], at: usize, cache: &mut B::Cache| {
                let places: Vec<usize> = (at..at + rows.len()).collect();
                if !places.is_empty() {
                    backend.store_rows(&upload(backend, &rows.concat()), &places, cache);
                }
            };
            let mut parts: Vec<GatheredRows> = Vec::new();
            let mut visible: Vec<Range<usize>> = Vec::new();
            let mut to = 0;
            for (query, &item) in items.iter().enumerate() {
                let (at, start) = (1 + query * first_room, 2 + query * second_room);
                store(&first[item * n_first..][..n_first], at, &mut first_cache);
                store(&second[item][..n_seen[item]], start, &mut second_cache);
                visible.push(start..start + n_seen[item]);
                parts.push(GatheredRows {
                    query,
                    first: at..at + n_first,
                    second: start..start + n_seen[item].min(n_chosen),
                    to,
                });
                to += n_gathered(item, &n_seen);
            }
            let q = upload(
                backend,
                &items.iter().flat_map(|&i| q[i].clone()).collect::<Vec<_>>(),
            );
            let weights: Vec<f32> = items.iter().flat_map(|&i| weights[i].clone()).collect();
            let weights = upload(backend, &weights);
            let mut chosen = backend.chosen(n * n_chosen);
            let input = IndexerInput {
                q: &q,
                weights: &weights,
                k: &second_cache,
            };
            backend.choose_rows(&shape, input, &visible, &mut chosen);
            let mut gathered = cache(to.max(1));
            let sources = [&first_cache, &second_cache];
            backend.gather_cached(sources, Some((&chosen, n_chosen)), &parts, &mut gathered);
            let rows = read_rows(backend, &gathered, to, head_dim);
            let mut found = vec![
                Largest {
                    index: 0,
                    value: 0.0
                };
                n * n_chosen
            ];
            backend.download_chosen(&chosen, 0, &mut found);
            let of_query = |(part, found): (&GatheredRows, &[Largest])| {
                let indices = found[..part.second.len()]
                    .iter()
                    .map(|found| found.index as f32);
                let mut all: Vec<f32> = indices.collect();
                all.resize(n_chosen, 0.0);
                all.extend(rows[part.gathered()].concat());
                all.resize(width, 0.0);
                all
            };
            parts
                .iter()
                .zip(found.chunks_exact(n_chosen))
                .map(of_query)
                .collect()
        }),
    }
}

/// Reads rows of a cache with one head, each by attention to a single key.
fn read_rows<B: Backend>(
    backend: &B,
    cache: &B::Cache,
    n: usize,
    head_dim: usize,
) -> Vec<Vec<f32>> {
    if n == 0 {
        return Vec::new();
    }
    let shape = AttentionShape {
        n_head: 1,
        n_head_kv: 1,
        head_dim,
        scale: 1.0,
        window: None,
    };
    let q = upload(backend, &vec![0.0; n * head_dim]);
    let input = AttentionInput {
        q: &q,
        k: cache,
        v: cache,
        sinks: None,
    };
    let keys: Vec<_> = (0..n).map(|row| row..row + 1).collect();
    let mut out = backend.buffer(n * head_dim);
    backend.attention(&shape, input, &keys, &mut out);
    download(backend, &out, n, head_dim)
}
