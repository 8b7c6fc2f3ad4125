//! [`Matrix`]: a weight that activations are multiplied with. All matrix products of models are here, so an
//! observer can read their inputs.

use std::sync::Arc;

use kernels::backend::{Backend, ExpertInput};

use crate::observe::{InputObserver, InputRoutes, InputRows, ObservedTensor};

/// A matrix: (n_out, n_in).
pub(super) struct Matrix<B: Backend> {
    pub(super) weight: B::Weight,
    pub(super) observation: Option<Observation>,
}

impl<B: Backend> Matrix<B> {
    /// Computes `n` rows of `out` from `n` rows of `x`.
    pub(super) fn multiply(&self, backend: &B, x: &B::Buffer, n: usize, out: &mut B::Buffer) {
        multiply_each(backend, x, n, [(self, out)]);
    }
}

/// Multiplies the same `n` rows of `x` by several matrices, each with its output.
pub(super) fn multiply_each<B: Backend, const N: usize>(
    backend: &B,
    x: &B::Buffer,
    n: usize,
    products: [(&Matrix<B>, &mut B::Buffer); N],
) {
    for (matrix, _) in &products {
        if let Some(observation) = &matrix.observation {
            observation.rows(backend, x, n);
        }
    }
    let mut products = products.map(|(matrix, out)| (&matrix.weight, out));
    backend.matmul_each(&mut products, x, n);
}

/// Matrices of the same shape stacked in one tensor: those of all experts, or of all heads.
pub(super) struct MatrixStack<B: Backend> {
    pub(super) weights: Vec<B::Weight>,
    pub(super) observation: Option<Observation>,
}

impl<B: Backend> MatrixStack<B> {
    /// Computes (n, n_used, n_out) from `n` rows of `x`, or from one row per matrix used (`input`).
    pub(super) fn multiply(
        &self,
        backend: &B,
        routes: &B::Routes,
        x: &B::Buffer,
        input: ExpertInput,
        n: usize,
        out: &mut B::Buffer,
    ) {
        if let Some(observation) = &self.observation {
            observation.routed_rows(backend, routes, x, input, n);
        }
        backend.expert_matmul(&self.weights, routes, x, input, n, out);
    }
}

/// An observer that wants the inputs of a tensor.
pub(super) struct Observation {
    observer: Arc<dyn InputObserver>,
    /// The observer's number of the tensor.
    tensor: usize,
    n_columns: usize,
}

impl Observation {
    /// Registers a tensor; `None` if the observer does not want its inputs.
    pub(super) fn new(
        observer: &Arc<dyn InputObserver>,
        tensor: &ObservedTensor<'_>,
    ) -> Option<Observation> {
        Some(Observation {
            tensor: observer.register(tensor)?,
            observer: Arc::clone(observer),
            n_columns: tensor.n_columns,
        })
    }

    fn rows<B: Backend>(&self, backend: &B, x: &B::Buffer, n: usize) {
        self.observe(backend, x, n, None);
    }

    fn routed_rows<B: Backend>(
        &self,
        backend: &B,
        routes: &B::Routes,
        x: &B::Buffer,
        input: ExpertInput,
        n: usize,
    ) {
        let experts = &backend.download_experts(routes, n);
        let n_rows = match input {
            ExpertInput::PerRow => n,
            ExpertInput::PerExpert => experts.len(),
        };
        let routes = InputRoutes {
            experts,
            n_used: experts.len() / n.max(1),
            input,
        };
        self.observe(backend, x, n_rows, Some(routes));
    }

    fn observe<B: Backend>(
        &self,
        backend: &B,
        x: &B::Buffer,
        n_rows: usize,
        routes: Option<InputRoutes<'_>>,
    ) {
        let n_columns = self.n_columns;
        let mut values = vec![0.0; n_rows * n_columns];
        backend.download(x, 0, &mut values);
        let input = InputRows {
            values: &values,
            n_columns,
            routes,
        };
        self.observer.observe(self.tensor, &input);
    }
}
