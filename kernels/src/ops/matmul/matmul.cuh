// Arguments of matrix products of activations with a weight or with chosen experts, and their partition into
// blocks.
#pragma once
#include "common.cuh"

/// Slots with the same expert: `order[start..start + count]`.
struct Group {
    uint32_t expert;
    uint32_t start;
    uint32_t count;
};

struct Matmul {
    /// The weight, or one weight per expert if there are groups.
    const uint8_t *weight;
    const uint8_t *const *experts;
    const Group *groups;
    const uint32_t *order;
    /// Activations as floats, and quantized with the numbers of `activation.cuh`.
    const float *x;
    const int8_t *quants;
    const float *scales;
    float *out;
    uint32_t n_rows;
    uint32_t n_cols;
    uint32_t row_bytes;
    /// Activation rows, and output rows that share an activation row.
    uint32_t n;
    uint32_t n_shared;
    uint32_t unused;
};

/// The work of a block: ROWS rows of a weight and up to C activation rows. Rows past the end repeat the last one,
/// and their results are not written. `count` is 0 if the block has no work.
template <uint32_t ROWS, uint32_t C>
struct Share {
    const Matmul &args;
    const uint8_t *weight;
    uint32_t first_row;
    uint32_t start;
    uint32_t count;

    __device__ __forceinline__ explicit Share(const Matmul &args) : args(args) {
        first_row = blockIdx.y * ROWS;
        start = blockIdx.x * C;
        if (first_row >= args.n_rows) {
            count = 0;
        } else if (args.groups == nullptr) {
            weight = args.weight;
            count = start < args.n ? min_of(C, args.n - start) : 0;
        } else {
            const Group group = args.groups[blockIdx.x];
            start = group.start;
            count = group.count;
            if (count > 0) weight = args.experts[group.expert];
        }
    }

    /// A row of the weight.
    __device__ __forceinline__ const uint8_t *row(uint32_t r) const {
        return weight + (uint64_t)min_of(first_row + r, args.n_rows - 1) * args.row_bytes;
    }

    /// The activation row of a column.
    __device__ __forceinline__ uint64_t input(uint32_t column) const {
        return output(min_of(column, count - 1)) / args.n_shared;
    }

    /// The output row of a column.
    __device__ __forceinline__ uint32_t output(uint32_t column) const {
        return args.groups == nullptr ? start + column : args.order[start + column];
    }

    /// Writes an element of the output, unless it is past the end.
    __device__ __forceinline__ void put(uint32_t r, uint32_t column, float value) const {
        if (first_row + r >= args.n_rows || column >= count) return;
        args.out[(uint64_t)output(column) * args.n_rows + first_row + r] = value;
    }
};
