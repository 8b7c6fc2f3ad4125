//! The work of commands that write models: rows of tensors.

use std::path::Path;

use schemas::gguf::{self, FileLayout, Output, Plan};
use schemas::report::{WorkContent, WorkOutput, WorkSlice, WorkTensor};
use schemas::work::{Slice, divide, hash, part};

use crate::specconv::input::Inputs;
use crate::specconv::write::{Model, WriteArgs};
use crate::work::{Description, Work, text};

/// Models that a command writes.
pub(in crate::specconv) struct ModelWork {
    models: Vec<Model>,
    inputs: Inputs,
    options: String,
}

impl ModelWork {
    /// Prepares models for their division. `options` identifies everything besides the inputs that determines the
    /// bytes.
    ///
    /// # Errors
    /// A flag cannot be combined with a division, or an output exists.
    pub(in crate::specconv) fn new(
        write: &WriteArgs,
        models: Vec<Model>,
        inputs: Inputs,
        options: String,
    ) -> anyhow::Result<ModelWork> {
        let models = write.arrange(models)?;
        write.check_division(models.iter().flat_map(Model::outputs), &inputs)?;
        Ok(ModelWork {
            models,
            inputs,
            options,
        })
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        self.models.iter().flat_map(Model::outputs).collect()
    }
}

impl Work for ModelWork {
    fn describe(&self, n_shards: usize) -> anyhow::Result<Description> {
        let outputs = self.outputs();
        let layouts = gguf::layouts(&outputs)?;
        let plans: Vec<&Plan> = outputs.iter().map(|output| output.plan).collect();
        let shards = divide(&plans, n_shards);
        let content = |part: schemas::work::Part| WorkContent::Tensors {
            output: part.file as u32,
            slices: (part.slices.iter())
                .map(|slice| described_slice(plans[part.file], &layouts[part.file], slice))
                .collect(),
        };
        let shards = shards.into_iter();
        let shards = shards.map(|parts| parts.into_iter().map(content).collect());
        let shards = shards.collect();
        let described = outputs.iter().zip(&layouts);
        Ok(Description {
            inputs: self.inputs.local(),
            sources: self.inputs.commits_read(),
            options: self.options.clone(),
            outputs: described
                .map(|(output, layout)| described_output(output.plan, output.path, layout))
                .collect::<anyhow::Result<_>>()?,
            headers: layouts.into_iter().map(|layout| layout.header).collect(),
            shards,
        })
    }

    fn parts(&self, contents: &[WorkContent]) -> anyhow::Result<Vec<Plan>> {
        let outputs = self.outputs();
        let mut parts = Vec::new();
        for content in contents {
            let WorkContent::Tensors { output, slices } = content else {
                anyhow::bail!("a part of a measurement, expected tensors");
            };
            let slices = slices.iter().map(|slice| Slice {
                tensor: slice.tensor as usize,
                rows: slice.first_row..slice.first_row + slice.n_rows,
            });
            let slices: Vec<Slice> = slices.collect();
            parts.push(part(outputs[*output as usize].plan, &slices)?);
        }
        self.inputs
            .prefetch(parts.iter().flat_map(|plan| &plan.tensors))?;
        self.inputs.report_downloads();
        Ok(parts)
    }
}

fn described_output(plan: &Plan, path: &Path, layout: &FileLayout) -> anyhow::Result<WorkOutput> {
    let tensors = plan.tensors.iter().zip(&layout.offsets);
    Ok(WorkOutput {
        path: text(path)?,
        size_bytes: layout.size_bytes,
        header_xxh3: hash(&layout.header),
        tensors: tensors
            .map(|(tensor, &offset)| WorkTensor {
                name: tensor.name.clone(),
                dtype: tensor.dtype.to_string(),
                shape: tensor.shape.clone(),
                offset,
                size_bytes: tensor.size_bytes,
            })
            .collect(),
    })
}

fn described_slice(plan: &Plan, layout: &FileLayout, slice: &Slice) -> WorkSlice {
    let tensor = &plan.tensors[slice.tensor];
    let n_rows = slice.rows.end - slice.rows.start;
    WorkSlice {
        tensor: slice.tensor as u32,
        first_row: slice.rows.start,
        n_rows,
        offset: layout.offsets[slice.tensor] + slice.rows.start * tensor.row_bytes(),
        size_bytes: n_rows * tensor.row_bytes(),
    }
}
