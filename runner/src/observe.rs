//! [`InputObserver`]: reads the rows that weights are multiplied with, for example to collect an importance
//! matrix. Models that are loaded without one do not pay for it.

use kernels::backend::ExpertInput;

/// Reads the inputs of matrix products. A pass calls it on one thread, in the order of the products.
pub trait InputObserver: Send + Sync {
    /// Returns a number for a tensor whose inputs are wanted, `None` for others. Called for every tensor that
    /// is loaded as a matrix; again if the tensor is loaded again.
    fn register(&self, tensor: &ObservedTensor<'_>) -> Option<usize>;

    /// Reads the rows that a registered tensor is multiplied with in one pass.
    fn observe(&self, tensor: usize, input: &InputRows<'_>);
}

/// A tensor that is loaded: a matrix, or a stack of matrices with inputs of the same length.
#[derive(Clone, Copy, Debug)]
pub struct ObservedTensor<'a> {
    /// Full name in the file.
    pub name: &'a str,
    /// Elements of an input row.
    pub n_columns: usize,
    /// Matrices in the stack.
    pub n_matrices: usize,
    /// The matrices that a row is multiplied with.
    pub routing: Routing,
}

/// The matrices of a stack that a row is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// All of them.
    All,
    /// The experts that the row is routed to.
    Chosen,
}

/// Input rows of one product, in the order of the batch.
#[derive(Clone, Copy, Debug)]
pub struct InputRows<'a> {
    /// The values: (n, n_columns), or (n, n_used, n_columns) if each expert has its own row.
    pub values: &'a [f32],
    /// Elements of a row.
    pub n_columns: usize,
    /// The matrices that multiply the rows; `None` for a single matrix.
    pub routes: Option<InputRoutes<'a>>,
}

/// The matrices of a stack that multiply each row.
#[derive(Clone, Copy, Debug)]
pub struct InputRoutes<'a> {
    /// Indices of the matrices, (n, n_used).
    pub experts: &'a [u32],
    /// Matrices used by a row.
    pub n_used: usize,
    /// Layout of the values.
    pub input: ExpertInput,
}

/// One input row of one matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputRow<'a> {
    /// Row of the batch.
    pub row: usize,
    /// Index of the matrix in its stack.
    pub matrix: usize,
    /// The row.
    pub values: &'a [f32],
}

impl<'a> InputRows<'a> {
    /// Returns the number of products of a row and a matrix.
    pub fn len(&self) -> usize {
        match &self.routes {
            None => self.values.len() / self.n_columns,
            Some(routes) => routes.experts.len(),
        }
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the input of a product; those of a row of the batch follow each other.
    pub fn get(&self, i: usize) -> InputRow<'a> {
        let (row, matrix, at) = match &self.routes {
            None => (i, 0, i),
            Some(routes) => {
                let row = i / routes.n_used;
                let at = match routes.input {
                    ExpertInput::PerRow => row,
                    ExpertInput::PerExpert => i,
                };
                (row, routes.experts[i] as usize, at)
            }
        };
        InputRow {
            row,
            matrix,
            values: &self.values[at * self.n_columns..][..self.n_columns],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_belongs_to_each_of_its_experts() {
        let values = [1.0, 2.0, 3.0, 4.0];
        let rows = |input, values| InputRows {
            values,
            n_columns: 1,
            routes: Some(InputRoutes {
                experts: &[2, 0, 1, 2],
                n_used: 2,
                input,
            }),
        };
        let found = |rows: InputRows<'_>| -> Vec<(usize, usize, f32)> {
            let all = (0..rows.len()).map(|i| rows.get(i));
            all.map(|x| (x.row, x.matrix, x.values[0])).collect()
        };
        assert_eq!(
            found(rows(ExpertInput::PerRow, &values[..2])),
            [(0, 2, 1.0), (0, 0, 1.0), (1, 1, 2.0), (1, 2, 2.0)]
        );
        assert_eq!(
            found(rows(ExpertInput::PerExpert, &values)),
            [(0, 2, 1.0), (0, 0, 2.0), (1, 1, 3.0), (1, 2, 4.0)]
        );
    }
}
