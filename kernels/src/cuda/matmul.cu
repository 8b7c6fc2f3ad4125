// Products of activations and a weight of one type, WEIGHT; of experts too. Compiled for each type.
//
// An output element is one chain of additions, the processor's: for codes tile after tile (see
// `kernels/src/cpu/dot.rs`), for numbers one sum a lane. A block makes ROWS rows of the weight times
// up to C activations; which elements share a block decides nothing.
#include "activation.cuh"
#include "weight.cuh"

/// Rows of the weight that a block multiplies with.
constexpr uint32_t ROWS = 8;
constexpr uint32_t THREADS = 128;

/// Slots that chose the same expert: `count` of them in `order`, from `start` on.
struct Group {
    uint32_t expert;
    uint32_t start;
    uint32_t count;
};

struct Matmul {
    /// The weight; or where groups are given one for each expert.
    const uint8_t *weight;
    const uint8_t *const *experts;
    const Group *groups;
    const uint32_t *order;
    /// Numbers, or codes with their scales.
    const float *x;
    const int8_t *codes;
    const Scale *scales;
    float *out;
    uint32_t n_rows;
    uint32_t n_cols;
    uint32_t row_bytes;
    /// Activation rows; output rows that share an activation row.
    uint32_t n;
    uint32_t n_shared;
};

/// What a block multiplies: rows of a weight, and up to C activation rows.
template <int C>
struct Share {
    const uint8_t *weight;
    uint32_t first_row;
    uint32_t count;
    uint32_t start;
    uint32_t inputs[C];

    __device__ __forceinline__ explicit Share(const Matmul &args) {
        first_row = blockIdx.y * ROWS;
        start = blockIdx.x * C;
        if (args.groups == nullptr) {
            weight = args.weight;
            count = min_of(C, args.n - start);
        } else {
            const Group group = args.groups[blockIdx.x];
            count = group.count;
            if (count == 0) return;
            weight = args.experts[group.expert];
            start = group.start;
        }
#pragma unroll
        for (uint32_t c = 0; c < C; c++) {
            inputs[c] = output(args, min_of(c, count - 1)) / args.n_shared;
        }
    }

    /// The output row of a column.
    __device__ __forceinline__ uint32_t output(const Matmul &args, uint32_t column) const {
        return args.groups == nullptr ? start + column : args.order[start + column];
    }
};

/// The part of an output element that one tile makes, but for the scale of the activations.
template <class T>
DEVICE float multiply(const typename T::Tile &tile, const uint32_t (&x)[8], const int32_t (&sums)[2]) {
    float product = 0.0f;
#pragma unroll
    for (int part = 0; part < T::SCALES; part++) {
        const int32_t sum = T::SCALES == 1 ? sums[0] + sums[1] : sums[part];
        int32_t dot = -T::OFFSET * sum;
#pragma unroll
        for (int i = 8 / T::SCALES * part; i < 8 / T::SCALES * (part + 1); i++) {
            dot = __dp4a((int32_t)tile.codes[i], (int32_t)x[i], dot);
        }
        product = part == 0 ? tile.scale[0] * (float)dot : fmaf(tile.scale[part], (float)dot, product);
        if (T::HAS_MINS) product = fmaf(tile.minus_min[part], (float)sum, product);
    }
    return product;
}

/// Codes: each thread makes the parts of one tile, then one thread an element adds them in order.
template <class T, int C>
DEVICE void multiply_codes(const Matmul &args, const Share<C> &share) {
    __shared__ float products[ROWS * C][THREADS + 1];
    __shared__ float scales[C][THREADS];
    const uint32_t n_tile = args.n_cols / LANES;
    const uint32_t row = threadIdx.x / C, column = threadIdx.x % C;
    float sum = 0.0f;
    for (uint32_t base = 0; base < n_tile; base += THREADS) {
        const uint32_t index = base + threadIdx.x;
        if (index < n_tile) {
            uint32_t x[C][8];
            int32_t sums[C][2];
#pragma unroll
            for (int c = 0; c < C; c++) {
                const uint64_t at = (uint64_t)share.inputs[c] * n_tile + index;
                const uint4 *codes = reinterpret_cast<const uint4 *>(args.codes + at * LANES);
                const uint4 first = codes[0], second = codes[1];
                const Scale scale = args.scales[at];
                x[c][0] = first.x, x[c][1] = first.y, x[c][2] = first.z, x[c][3] = first.w;
                x[c][4] = second.x, x[c][5] = second.y, x[c][6] = second.z, x[c][7] = second.w;
                sums[c][0] = scale.sums[0], sums[c][1] = scale.sums[1];
                scales[c][threadIdx.x] = scale.scale;
            }
            const uint64_t block = (uint64_t)(index / T::TILES) * T::BYTES;
#pragma unroll(C < 4 ? 4 : 1)
            for (uint32_t r = 0; r < ROWS; r++) {
                // Beyond the last row that one stands in.
                const uint64_t w = min_of(share.first_row + r, args.n_rows - 1);
                typename T::Tile tile;
                T::unpack(share.weight + w * args.row_bytes + block, index % T::TILES, tile);
#pragma unroll
                for (int c = 0; c < C; c++) {
                    products[r * C + c][threadIdx.x] = multiply<T>(tile, x[c], sums[c]);
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < ROWS * C) {
            const uint32_t len = min_of(THREADS, n_tile - base);
#pragma unroll 8
            for (uint32_t i = 0; i < len; i++) {
                sum = fmaf(scales[column][i], products[threadIdx.x][i], sum);
            }
        }
        __syncthreads();
    }
    if (threadIdx.x < ROWS * C && share.first_row + row < args.n_rows && column < share.count) {
        args.out[(uint64_t)share.output(args, column) * args.n_rows + share.first_row + row] = sum;
    }
}

/// Numbers: each warp multiplies with some rows, each lane with every 32nd element.
template <class T, int C>
DEVICE void multiply_numbers(const Matmul &args, const Share<C> &share) {
    constexpr uint32_t N = ROWS / (THREADS / LANES);
    const uint32_t first = share.first_row + warp() * N;
    float sums[N][C] = {};
    for (uint32_t at = 0; at < args.n_cols; at += LANES) {
        const uint32_t i = at + lane();
        const bool inside = i < args.n_cols;
        float x[C];
#pragma unroll
        for (int c = 0; c < C; c++) {
            x[c] = inside ? args.x[(uint64_t)share.inputs[c] * args.n_cols + i] : 0.0f;
        }
#pragma unroll
        for (uint32_t r = 0; r < N; r++) {
            const uint64_t row = min_of(first + r, args.n_rows - 1);
            const float w = inside ? T::at(share.weight + row * args.row_bytes, i) : 0.0f;
#pragma unroll
            for (int c = 0; c < C; c++) sums[r][c] = fmaf(w, x[c], sums[r][c]);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < N; r++) {
#pragma unroll
        for (uint32_t c = 0; c < C; c++) {
            if (c >= share.count) continue;
            const float sum = sum_lanes(sums[r][c]);
            if (lane() == 0 && first + r < args.n_rows) {
                args.out[(uint64_t)share.output(args, c) * args.n_rows + first + r] = sum;
            }
        }
    }
}

template <class T, int C>
DEVICE void multiply_share(const Matmul &args) {
    const Share<C> share(args);
    if (share.count == 0) return;
    if constexpr (IsCoded<T>::VALUE) {
        multiply_codes<T, C>(args, share);
    } else {
        multiply_numbers<T, C>(args, share);
    }
}

KERNEL(matmul_1, THREADS, Matmul) { multiply_share<WEIGHT, 1>(args); }
KERNEL(matmul_2, THREADS, Matmul) { multiply_share<WEIGHT, 2>(args); }
KERNEL(matmul_4, THREADS, Matmul) { multiply_share<WEIGHT, 4>(args); }
KERNEL(matmul_8, THREADS, Matmul) { multiply_share<WEIGHT, 8>(args); }
