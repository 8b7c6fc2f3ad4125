//! File formats that the crates exchange: [`gguf`], the container; [`arch`], tensors and keys of
//! each architecture; [`vocab`], maps between vocabularies; [`report`], JSON results; [`passport`], results of
//! verification in the keys of a model; [`work`], models that several machines write. [`input`]
//! reads files up to a size limit, [`outfile`] publishes outputs, and [`threads`] runs work on
//! several threads, [`size`] counts parameters. This crate does no arithmetic on weights, prints nothing, and has no command
//! line.
//!
//! # Example
//!
//! Write a file and read it again:
//!
//! ```
//! use std::sync::Arc;
//!
//! use schemas::gguf::{self, DType, Metadata, Output, Owned, Plan, Tensor, WriteConfig};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! let mut metadata = Metadata::new();
//! metadata.set("general.name", "tiny");
//! let mut plan = Plan::new(metadata);
//! let bytes = [1.0f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let row_bytes = 12;
//! let data = Arc::new(Owned { bytes, row_bytes });
//! plan.tensors.push(Tensor::new("output_norm.weight", vec![3], DType::F32, data)?);
//! gguf::write(&[Output { plan: &plan, path: &path }], &WriteConfig::new())?;
//!
//! let plan = gguf::open(&path)?;
//! let tensor = plan.tensor("output_norm.weight").ok_or("no such tensor")?;
//! assert_eq!(plan.metadata.need_str("general.name")?, "tiny");
//! assert_eq!(tensor.shape, [3]);
//! assert_eq!(tensor.read_all()?[4..8], 2.0f32.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

pub mod arch;
pub mod gguf;
pub mod imatrix;
pub mod input;
pub mod outfile;
pub mod passport;
pub mod progress;
pub mod report;
pub mod size;
pub mod threads;
pub mod vocab;
pub mod work;
