//! Rounding to sixteen uneven steps, with lookup tables for vector instructions.

/// Converts sixteen values to `f32`.
pub(crate) const fn numbers(values: &[i8; 16]) -> [f32; 16] {
    let mut numbers = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        numbers[i] = values[i] as f32;
        i += 1;
    }
    numbers
}

/// Tables to find the nearest of sixteen values.
pub(crate) struct Steps {
    /// Results, from the lowest step to the highest.
    pub(crate) values: [f32; 16],
    /// Midpoints: a number below `middles[i]` belongs to step `i` or a lower one.
    pub(crate) middles: [f32; 15],
    /// The midpoints of odd index as a search tree: the children of node `i` are nodes `2 * i` and `2 * i +
    /// 1`; the root is node 1.
    pub(crate) tree: [f32; 8],
    /// The midpoints of even index, the leaves of the tree.
    pub(crate) leaves: [f32; 8],
    /// The values of even and of odd steps.
    pub(crate) even_odd: [[f32; 8]; 2],
    /// Numbers in `CELL * (c - 0.5)..CELL * (c + 0.5)` belong to cell `c`, modulo 32. A cell contains at
    /// most one midpoint; infinity means none.
    pub(crate) cell_middles: [f32; 32],
    /// The values below and above a cell's midpoint.
    pub(crate) cell_values: [[f32; 32]; 2],
}

impl Steps {
    /// Width of a cell.
    pub(crate) const CELL: f32 = 10.0;

    /// The largest magnitude that can be rounded.
    pub(crate) const REACH: f32 = 150.0;

    /// Minimum distance of midpoints from cell borders, so that rounding cannot confuse the two.
    const MARGIN: f32 = 0.25;

    pub(crate) const fn new(values: [f32; 16], middles: [f32; 15]) -> Steps {
        let mut steps = Steps {
            values,
            middles,
            tree: [0.0; 8],
            leaves: [0.0; 8],
            even_odd: [[0.0; 8]; 2],
            cell_middles: [f32::INFINITY; 32],
            cell_values: [[0.0; 32]; 2],
        };
        // Level by level: indices 7, then 3 and 11, then 1, 5, 9 and 13.
        let (mut node, mut stride) = (1, 8);
        while node < 8 {
            let mut i = stride - 1;
            while i < 15 {
                steps.tree[node] = middles[i];
                node += 1;
                i += 2 * stride;
            }
            stride /= 2;
        }
        let mut i = 0;
        while i < 8 {
            steps.leaves[i] = middles[2 * i];
            steps.even_odd[0][i] = values[2 * i];
            steps.even_odd[1][i] = values[2 * i + 1];
            i += 1;
        }
        let mut cell = -16;
        while cell < 16 {
            let low = (cell as f32 - 0.5) * Self::CELL;
            let high = low + Self::CELL;
            let mut step = 0;
            while step < 15 && middles[step] < low {
                step += 1;
            }
            let at = (cell & 31) as usize;
            steps.cell_values[0][at] = values[step];
            steps.cell_values[1][at] = values[step];
            if step < 15 && middles[step] < high {
                assert!(middles[step] > low + Self::MARGIN && middles[step] < high - Self::MARGIN);
                assert!(step == 14 || middles[step + 1] > high);
                steps.cell_middles[at] = middles[step];
                steps.cell_values[1][at] = values[step + 1];
            }
            cell += 1;
        }
        steps
    }
}
