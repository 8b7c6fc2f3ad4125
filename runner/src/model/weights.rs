//! [`Weights`]: the tensors of a file, for loading. A lookup checks the name and the shape, and
//! every tensor of the file must be in the architecture's table: no weight is used unchecked.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use kernels::backend::{Backend, WeightData, WeightMemory};
use kernels::types::{InvalidKind, codec};
use schemas::arch::{self, Hparams, LayerKind, Need};
use schemas::gguf::{DType, Owned, Plan, Source, Tensor, logical_shape};
use schemas::progress::Task;
use schemas::threads;
use schemas::vocab::read_d2t;

use crate::error::ModelError;
use crate::observe::{InputObserver, ObservedTensor, Routing};

use super::matrix::{Matrix, MatrixStack, Observation};

/// Bytes of a tensor, kept alive by the weight that uses them.
struct TensorBytes {
    source: Arc<dyn Source>,
    bytes: Range<usize>,
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        let bytes = self.source.bytes();
        &bytes.expect("only sources that lie in memory are wrapped")[self.bytes.clone()]
    }
}

impl WeightMemory for TensorBytes {
    fn release_pages(&self, bytes: Range<usize>) {
        let start = self.bytes.start;
        self.source
            .release_pages(start + bytes.start..start + bytes.end);
    }
}

/// Embeddings and output heads, each loaded once for all models that use it: an embedding is often
/// the output head too, and an MTP head uses both of its target.
pub(super) struct Shared<B: Backend>(RefCell<Vec<Made<B>>>);

/// A loaded weight and the source of its values.
struct Made<B: Backend> {
    source: Arc<dyn Source>,
    weight: Arc<Matrix<B>>,
}

impl<B: Backend> Shared<B> {
    pub(super) fn new() -> Shared<B> {
        Shared(RefCell::default())
    }

    fn find(&self, source: &Arc<dyn Source>) -> Option<Arc<Matrix<B>>> {
        let made = self.0.borrow();
        let is_of = |of: &Arc<dyn Source>| ptr::addr_eq(Arc::as_ptr(of), Arc::as_ptr(source));
        let found = made.iter().find(|made| is_of(&made.source));
        found.map(|made| Arc::clone(&made.weight))
    }

    fn keep(&self, source: &Arc<dyn Source>, weight: &Arc<Matrix<B>>) {
        self.0.borrow_mut().push(Made {
            source: Arc::clone(source),
            weight: Arc::clone(weight),
        });
    }
}

/// The tensors of a plan, all checked against the architecture's table. Names are looked up within
/// the current block, or in the whole model if there is none.
pub(super) struct Weights<'a, B: Backend> {
    backend: &'a B,
    shared: &'a Shared<B>,
    observer: Option<&'a Arc<dyn InputObserver>>,
    pub(super) hparams: Hparams,
    tensors: HashMap<&'a str, &'a Tensor>,
    /// The current block.
    pub(super) block: Option<u32>,
    /// Bytes of the loaded weights, each counted once.
    pub(super) pass_bytes: usize,
    /// Elements of the matrices that a prompt token is multiplied with, each counted once.
    pub(super) multiply_adds: u64,
    counted: HashSet<String>,
    /// Tensors that the architecture's table requires.
    required: HashSet<String>,
}

/// True if a tensor has a row for each token. It is not counted for prompts: embeddings are looked
/// up, and logits are not needed.
fn is_vocabulary(name: &str) -> bool {
    let names = [
        "token_embd",
        "output.weight",
        "embed_tokens",
        "shared_head_head",
    ];
    names.iter().any(|part| name.contains(part)) && !name.contains("attn_output")
}

impl<'a, B: Backend> Weights<'a, B> {
    pub(super) fn new(
        backend: &'a B,
        shared: &'a Shared<B>,
        plan: &'a Plan,
        observer: Option<&'a Arc<dyn InputObserver>>,
    ) -> Result<Weights<'a, B>, ModelError> {
        let hparams = Hparams::from_plan(plan)?;
        let rows = hparams.arch.expected(&hparams);
        let rows: HashMap<&str, _> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
        let mut tensors = HashMap::new();
        for tensor in &plan.tensors {
            let name = tensor.name.clone();
            let Some(row) = rows.get(tensor.name.as_str()) else {
                return Err(ModelError::UnknownTensor {
                    tensor: name,
                    arch: hparams.arch.name,
                });
            };
            let expected = row.shape(&hparams);
            if logical_shape(&expected) != tensor.logical_shape() {
                let found = tensor.shape.clone();
                return Err(ModelError::Shape {
                    tensor: name,
                    found,
                    expected,
                });
            }
            tensors.insert(tensor.name.as_str(), tensor);
        }
        let counted = HashSet::new();
        let required = rows
            .values()
            .filter(|row| row.spec.need == Need::Required)
            .map(|row| row.name.clone())
            .collect();
        Ok(Weights {
            backend,
            shared,
            observer,
            hparams,
            tensors,
            block: None,
            pass_bytes: 0,
            multiply_adds: 0,
            counted,
            required,
        })
    }

    /// Returns the number of the current block.
    pub(super) fn block(&self) -> u32 {
        self.block.expect("layers are loaded block by block")
    }

    /// Returns the kind of the current block.
    pub(super) fn kind(&self) -> LayerKind {
        self.hparams.layers[self.block() as usize]
    }

    fn full_name(&self, name: &str) -> String {
        match self.block {
            Some(block) => format!("blk.{block}.{name}"),
            None => name.to_owned(),
        }
    }

    /// True if the file has a tensor with this full name.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Loads a tensor that files of some architectures may lack.
    pub(super) fn get(&mut self, name: &str) -> Result<Option<B::Weight>, ModelError> {
        let Some(tensor) = self.find(name)? else {
            return Ok(None);
        };
        let weight = self.whole(tensor)?;
        self.count(tensor, &weight);
        Ok(Some(weight))
    }

    /// Loads an embedding or output head, which other models may use too.
    pub(super) fn get_shared(&mut self, name: &str) -> Result<Option<Arc<Matrix<B>>>, ModelError> {
        let Some(tensor) = self.find(name)? else {
            return Ok(None);
        };
        let weight = match self.shared.find(&tensor.source) {
            Some(weight) => weight,
            None => {
                let weight = self.whole(tensor)?;
                let weight = Arc::new(self.matrix(tensor, weight));
                self.shared.keep(&tensor.source, &weight);
                weight
            }
        };
        self.count(tensor, &weight.weight);
        Ok(Some(weight))
    }

    /// Loads a matrix that files of some architectures may lack.
    pub(super) fn get_matrix(&mut self, name: &str) -> Result<Option<Matrix<B>>, ModelError> {
        let Some(tensor) = self.find(name)? else {
            return Ok(None);
        };
        let weight = self.whole(tensor)?;
        self.count(tensor, &weight);
        Ok(Some(self.matrix(tensor, weight)))
    }

    fn matrix(&self, tensor: &Tensor, weight: B::Weight) -> Matrix<B> {
        let observation = self.observation(tensor, 1, Routing::All);
        Matrix {
            weight,
            observation,
        }
    }

    /// Asks the observer whether it reads the inputs of a tensor, which is a stack of `n_matrices`.
    fn observation(
        &self,
        tensor: &Tensor,
        n_matrices: usize,
        routing: Routing,
    ) -> Option<Observation> {
        let observed = ObservedTensor {
            name: &tensor.name,
            n_columns: tensor.ne0() as usize,
            n_matrices,
            routing,
        };
        Observation::new(self.observer?, &observed)
    }

    fn find(&self, name: &str) -> Result<Option<&'a Tensor>, ModelError> {
        let name = self.full_name(name);
        match self.tensors.get(name.as_str()) {
            None if self.required.contains(&name) => {
                Err(ModelError::MissingTensor { tensor: name })
            }
            found => Ok(found.copied()),
        }
    }

    fn whole(&self, tensor: &Tensor) -> Result<B::Weight, ModelError> {
        let n_rows = (tensor.n_elements() / tensor.ne0().max(1)) as usize;
        self.load(tensor, in_memory(tensor)?, 0..n_rows)
    }

    /// Adds a weight to the counts of a pass, once.
    fn count(&mut self, tensor: &Tensor, weight: &B::Weight) {
        let is_matrix = tensor.shape.len() == 2 && !is_vocabulary(&tensor.name);
        if self.counted.insert(tensor.name.clone()) {
            self.pass_bytes += self.backend.weight_bytes(weight);
            self.multiply_adds += if is_matrix { tensor.n_elements() } else { 0 };
        }
    }

    /// Loads the experts stacked in a tensor, one weight each.
    pub(super) fn need_experts(&mut self, name: &str) -> Result<MatrixStack<B>, ModelError> {
        let arch::Experts {
            n_expert, n_used, ..
        } = self.hparams.experts;
        // A token reads only the experts it is routed to.
        self.need_stack(name, n_expert as usize, n_used as usize, Routing::Chosen)
    }

    /// Loads the experts stacked in a tensor as two weights each, the first half of their rows and the second; files
    /// may lack the tensor. Both have the same input, so only that of the first is observed.
    pub(super) fn get_expert_halves(
        &mut self,
        name: &str,
    ) -> Result<Option<[MatrixStack<B>; 2]>, ModelError> {
        let Some(tensor) = self.find(name)? else {
            return Ok(None);
        };
        let arch::Experts {
            n_expert, n_used, ..
        } = self.hparams.experts;
        let n_half = 2 * n_expert as usize;
        let mut all = self.stack(tensor, in_memory(tensor)?, n_half)?;
        self.count_stack(tensor, &all, 2 * n_used as usize);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (i, weight) in all.drain(..).enumerate() {
            match i % 2 {
                0 => first.push(weight),
                _ => second.push(weight),
            }
        }
        let observation = self.observation(tensor, n_expert as usize, Routing::Chosen);
        Ok(Some([
            MatrixStack {
                weights: first,
                observation,
            },
            MatrixStack {
                weights: second,
                observation: None,
            },
        ]))
    }

    /// Loads the matrices of all heads stacked in a tensor, one weight each.
    pub(super) fn need_heads(
        &mut self,
        name: &str,
        n_head: usize,
    ) -> Result<MatrixStack<B>, ModelError> {
        self.need_stack(name, n_head, n_head, Routing::All)
    }

    /// Loads the weights stacked in a tensor; a token reads `n_read` of them.
    fn need_stack(
        &mut self,
        name: &str,
        n_weight: usize,
        n_read: usize,
        routing: Routing,
    ) -> Result<MatrixStack<B>, ModelError> {
        let name = self.full_name(name);
        let Some(&tensor) = self.tensors.get(name.as_str()) else {
            return Err(ModelError::MissingTensor { tensor: name });
        };
        let stack = self.stack(tensor, in_memory(tensor)?, n_weight)?;
        self.count_stack(tensor, &stack, n_read);
        Ok(MatrixStack {
            weights: stack,
            observation: self.observation(tensor, n_weight, routing),
        })
    }

    /// Loads consecutive rows of a matrix, given in another order, as a stack of `n_weight` matrices; a token reads
    /// `n_read` of them.
    pub(super) fn need_clusters(
        &mut self,
        name: &str,
        order: &[u32],
        n_weight: usize,
        n_read: usize,
    ) -> Result<MatrixStack<B>, ModelError> {
        let Some(tensor) = self.find(name)? else {
            return Err(ModelError::MissingTensor {
                tensor: self.full_name(name),
            });
        };
        let source = in_memory(tensor)?;
        let all = source.bytes().expect("the source lies in memory");
        let row_bytes = tensor.row_bytes();
        let row = |&row: &u32| &all[row as usize * row_bytes as usize..][..row_bytes as usize];
        let bytes = order.iter().flat_map(row).copied().collect();
        let ordered = Arc::new(Owned { bytes, row_bytes });
        let stack = self.stack(tensor, ordered, n_weight)?;
        self.count_stack(tensor, &stack, n_read);
        Ok(MatrixStack {
            weights: stack,
            observation: None,
        })
    }

    /// Loads the rows of a tensor as `n_weight` weights.
    fn stack(
        &self,
        tensor: &Tensor,
        source: Arc<dyn Source>,
        n_weight: usize,
    ) -> Result<Vec<B::Weight>, ModelError> {
        let n_rows = tensor.n_rows() as usize / n_weight;
        let load = |i| {
            let rows = i * n_rows..(i + 1) * n_rows;
            self.load(tensor, Arc::clone(&source), rows)
        };
        (0..n_weight).map(load).collect()
    }

    /// Adds the `n_read` weights of a stack that a token reads to the counts of a pass, once.
    fn count_stack(&mut self, tensor: &Tensor, stack: &[B::Weight], n_read: usize) {
        let read = stack.iter().take(n_read);
        let read_bytes: usize = read.map(|weight| self.backend.weight_bytes(weight)).sum();
        if self.counted.insert(tensor.name.clone()) {
            self.pass_bytes += read_bytes;
            if !is_vocabulary(&tensor.name) {
                self.multiply_adds += tensor.n_elements() / stack.len() as u64 * n_read as u64;
            }
        }
    }

    /// Loads some rows of a tensor as a weight.
    fn load(
        &self,
        tensor: &Tensor,
        source: Arc<dyn Source>,
        rows: Range<usize>,
    ) -> Result<B::Weight, ModelError> {
        let row_bytes = tensor.row_bytes() as usize;
        let data = WeightData {
            dtype: tensor.dtype,
            n_rows: rows.len(),
            n_cols: tensor.ne0() as usize,
            bytes: Arc::new(TensorBytes {
                source,
                bytes: rows.start * row_bytes..rows.end * row_bytes,
            }),
        };
        self.backend
            .load(data)
            .map_err(|source| ModelError::Unsupported {
                tensor: tensor.name.clone(),
                source,
            })
    }

    /// Loads consecutive groups of rows of a tensor, one matrix each; files may lack the tensor. All have the
    /// same input, so only that of the first is observed.
    pub(super) fn get_rows(
        &mut self,
        name: &str,
        groups: &[usize],
    ) -> Result<Option<Vec<Matrix<B>>>, ModelError> {
        let Some(tensor) = self.find(name)? else {
            return Ok(None);
        };
        let source = in_memory(tensor)?;
        let mut parts = Vec::with_capacity(groups.len());
        let mut start = 0;
        for &n_rows in groups {
            let weight = self.load(tensor, Arc::clone(&source), start..start + n_rows)?;
            let observation = match start {
                0 => self.observation(tensor, 1, Routing::All),
                _ => None,
            };
            parts.push(Matrix {
                weight,
                observation,
            });
            start += n_rows;
        }
        if self.counted.insert(tensor.name.clone()) {
            let bytes = parts
                .iter()
                .map(|part| self.backend.weight_bytes(&part.weight));
            self.pass_bytes += bytes.sum::<usize>();
            self.multiply_adds += tensor.n_elements();
        }
        Ok(Some(parts))
    }

    /// Loads a required tensor.
    pub(super) fn need(&mut self, name: &str) -> Result<B::Weight, ModelError> {
        let missing = ModelError::MissingTensor {
            tensor: self.full_name(name),
        };
        self.get(name)?.ok_or(missing)
    }

    /// Loads a required matrix.
    pub(super) fn need_matrix(&mut self, name: &str) -> Result<Matrix<B>, ModelError> {
        let missing = ModelError::MissingTensor {
            tensor: self.full_name(name),
        };
        self.get_matrix(name)?.ok_or(missing)
    }

    /// Loads a required embedding or output head.
    pub(super) fn need_shared(&mut self, name: &str) -> Result<Arc<Matrix<B>>, ModelError> {
        let missing = ModelError::MissingTensor {
            tensor: self.full_name(name),
        };
        self.get_shared(name)?.ok_or(missing)
    }

    /// Reads the target's token of each row of a reduced output head, from its `d2t` map.
    pub(super) fn map(&self, name: &str) -> Result<Option<Vec<u32>>, ModelError> {
        let tensor = self.tensors.get(self.full_name(name).as_str());
        let tokens = tensor.map(|tensor| read_d2t(tensor, self.hparams.n_vocab));
        Ok(tokens.transpose()?)
    }

    /// Reads the values of a small tensor that files may lack.
    pub(super) fn values(&self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        self.model_values(&self.full_name(name))
    }

    /// Loads a required embedding that no other model uses. A pass reads only the rows of its tokens, so it is
    /// not counted.
    pub(super) fn need_table(&self, name: &str) -> Result<B::Weight, ModelError> {
        match self.find(name)? {
            Some(tensor) => self.whole(tensor),
            None => Err(ModelError::MissingTensor {
                tensor: self.full_name(name),
            }),
        }
    }

    /// Reads a tensor that has each token once.
    pub(super) fn permutation(&self, name: &str, n_vocab: u64) -> Result<Vec<u32>, ModelError> {
        let missing = || ModelError::MissingTensor {
            tensor: name.to_owned(),
        };
        let tensor = self.find(name)?.ok_or_else(missing)?;
        let width = match tensor.dtype {
            DType::I32 => 4,
            DType::I64 => 8,
            dtype => {
                let tensor = name.to_owned();
                return Err(ModelError::NoCodec { tensor, dtype });
            }
        };
        let source = in_memory(tensor)?;
        let bytes = source.bytes().expect("the source lies in memory");
        let mut seen = vec![false; n_vocab as usize];
        let mut tokens = Vec::with_capacity(seen.len());
        for (row, bytes) in bytes.chunks_exact(width).enumerate() {
            let mut wide = [if bytes[width - 1] < 128 { 0 } else { 255 }; 8];
            wide[..width].copy_from_slice(bytes);
            let token = i64::from_le_bytes(wide);
            let index = usize::try_from(token).ok();
            match index.and_then(|index| seen.get_mut(index)) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    return Err(ModelError::Permutation {
                        tensor: name.to_owned(),
                        row,
                        token,
                        n_vocab,
                    });
                }
            }
            tokens.push(token as u32);
        }
        Ok(tokens)
    }

    /// Reads the experts of each token, (n_vocab, n_used), which files may lack.
    pub(super) fn token_experts(&self, name: &str) -> Result<Option<Vec<u32>>, ModelError> {
        let Some(tensor) = self.find(name)? else {
            return Ok(None);
        };
        if tensor.dtype != DType::I32 {
            let (tensor, dtype) = (self.full_name(name), tensor.dtype);
            return Err(ModelError::NoCodec { tensor, dtype });
        }
        let source = in_memory(tensor)?;
        let bytes = source.bytes().expect("the source lies in memory");
        let experts: Vec<u32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&bytes| u32::from_le_bytes(bytes))
            .collect();
        let n_expert = self.hparams.experts.n_expert;
        match experts
            .iter()
            .find(|&&expert| u64::from(expert) >= n_expert)
        {
            None => Ok(Some(experts)),
            Some(&expert) => Err(ModelError::TokenExpert {
                tensor: self.full_name(name),
                expert: expert as i32,
                n_expert,
            }),
        }
    }

    /// Reads the values of a required small tensor, for use on the host.
    pub(super) fn need_values(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let tensor = self.full_name(name);
        let values = self.model_values(&tensor)?;
        values.ok_or(ModelError::MissingTensor { tensor })
    }

    /// Reads the values of a small tensor of the whole model, for precomputation at load.
    pub(super) fn model_values(&self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(&tensor) = self.tensors.get(name) else {
            return Ok(None);
        };
        let Some(codec) = codec(tensor.dtype) else {
            let (tensor, dtype) = (name.to_owned(), tensor.dtype);
            return Err(ModelError::NoCodec { tensor, dtype });
        };
        let mut values = vec![0.0; tensor.n_elements() as usize];
        let source = in_memory(tensor)?;
        let bytes = source.bytes().expect("the source lies in memory");
        codec.dequantize(bytes, &mut values);
        Ok(Some(values))
    }
}

/// Returns a tensor's source with its bytes in memory, reading them if necessary.
fn in_memory(tensor: &Tensor) -> Result<Arc<dyn Source>, ModelError> {
    if tensor.source.bytes().is_some() {
        return Ok(Arc::clone(&tensor.source));
    }
    let bytes = tensor.read_all().map_err(|source| ModelError::Source {
        tensor: tensor.name.clone(),
        source,
    })?;
    Ok(Arc::new(Owned {
        bytes,
        row_bytes: tensor.row_bytes(),
    }))
}

/// Bytes of a tensor checked at a time: small enough for the CPU cache.
const CHUNK: usize = 1 << 17;

/// Rejects NaN and infinity, in values or in block scales. Reads the whole file and keeps none of
/// it in memory.
///
/// # Errors
/// The first such block, with its offset in the file, or a read error.
pub fn check_values(plan: &Plan, task: &Task) -> Result<(), ModelError> {
    let chunks = |tensor| parts(tensor).map(move |rows| (tensor, rows));
    let chunks: Vec<_> = plan.tensors.iter().flat_map(chunks).collect();
    let check = |buffer: &mut Vec<u8>, (tensor, rows): &(&Tensor, Range<u64>)| {
        check_rows(tensor, rows.clone(), buffer)?;
        task.advance((rows.end - rows.start) * tensor.row_bytes());
        Ok(())
    };
    threads::try_map(&chunks, Vec::new, check).map(drop)
}

/// Splits the rows of a tensor into chunks.
fn parts(tensor: &Tensor) -> impl Iterator<Item = Range<u64>> {
    let step = (CHUNK as u64 / tensor.row_bytes()).max(1);
    let n_rows = tensor.n_rows();
    let chunk = move |start| start..n_rows.min(start + step);
    (0..n_rows).step_by(step as usize).map(chunk)
}

fn check_rows(tensor: &Tensor, rows: Range<u64>, buffer: &mut Vec<u8>) -> Result<(), ModelError> {
    let Some(codec) = codec(tensor.dtype) else {
        return Ok(());
    };
    let row_bytes = tensor.row_bytes();
    buffer.resize(((rows.end - rows.start) * row_bytes) as usize, 0);
    let read = tensor.source.read(rows.clone(), buffer);
    read.map_err(|source| ModelError::Source {
        tensor: tensor.name.clone(),
        source,
    })?;
    let Some(invalid) = codec.find_invalid(buffer) else {
        return Ok(());
    };
    let block_bytes = tensor.dtype.layout().map_or(1, |layout| layout.block_bytes);
    let index = (rows.start * row_bytes / block_bytes) as usize + invalid.index;
    let start = tensor.source.origin().map_or(0, |origin| origin.offset);
    Err(ModelError::InvalidData {
        tensor: tensor.name.clone(),
        what: match invalid.kind {
            InvalidKind::Nan => "NaN",
            InvalidKind::Infinity => "infinity",
        },
        dtype: tensor.dtype,
        index,
        offset: start + index as u64 * block_bytes,
    })
}
