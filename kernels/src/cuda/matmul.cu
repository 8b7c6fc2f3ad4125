// Products of activations and a weight of one type, WEIGHT; of experts too. Compiled for each type.
//
// An output element is one chain of additions, the processor's: for codes tile after tile (see
// `kernels/src/cpu/dot.rs`), for numbers one sum a lane. A block makes ROWS rows of the weight times
// up to C activations, or where there are many a square of SIDE; which elements share a block decides
// nothing.
#include "activation.cuh"
#include "tensor.cuh"
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

/// The part of an output element that one tile makes, but for the scale of the activations: of sums of
/// products of codes, one for each scale.
template <class T>
DEVICE float scaled(const int32_t (&dots)[T::SCALES], const float (&scale)[T::SCALES],
                    const float (&minus_min)[T::SCALES], const int32_t (&sums)[2]) {
    float product = 0.0f;
#pragma unroll
    for (int part = 0; part < T::SCALES; part++) {
        const int32_t sum = T::SCALES == 1 ? sums[0] + sums[1] : sums[part];
        const float dot = (float)(dots[part] - T::OFFSET * sum);
        product = part == 0 ? scale[0] * dot : fmaf(scale[part], dot, product);
        if (T::HAS_MINS) product = fmaf(minus_min[part], (float)sum, product);
    }
    return product;
}

/// The same of a tile.
template <class T>
DEVICE float multiply(const typename T::Tile &tile, const uint32_t (&x)[8], const int32_t (&sums)[2]) {
    int32_t dots[T::SCALES] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int32_t &dot = dots[i * T::SCALES / 8];
        dot = __dp4a((int32_t)tile.codes[i], (int32_t)x[i], dot);
    }
    return scaled<T>(dots, tile.scale, tile.minus_min, sums);
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

/// Rows of the weight, and activations, of a block where there are many of both.
constexpr uint32_t SIDE = 64;
/// Tiles of each that lie in shared memory together.
constexpr uint32_t DEPTH = 4;
/// Words from one tile's codes to the next: lanes that read together read different banks.
constexpr uint32_t PITCH = 12;

DEVICE void store_codes(uint32_t (&place)[PITCH], const uint32_t (&codes)[8]) {
    uint4 *words = reinterpret_cast<uint4 *>(place);
    words[0] = {codes[0], codes[1], codes[2], codes[3]};
    words[1] = {codes[4], codes[5], codes[6], codes[7]};
}

/// Codes, many activations: tensor cores make the integers of a tile, and each thread adds what comes of
/// them to its own elements, tile after tile. A warp has sixteen rows and all activations.
template <class T>
DEVICE void multiply_many(const Matmul &args) {
    __align__(16) __shared__ uint32_t w_codes[DEPTH][SIDE][PITCH];
    __align__(16) __shared__ uint32_t x_codes[DEPTH][SIDE][PITCH];
    __shared__ float w_scales[DEPTH][SIDE][T::SCALES];
    __shared__ float w_minus_mins[DEPTH][SIDE][T::SCALES];
    __shared__ Scale x_scales[DEPTH][SIDE];
    const uint32_t n_tile = args.n_cols / LANES;
    const uint32_t first_row = blockIdx.y * SIDE, first = blockIdx.x * SIDE;
    const uint32_t g = lane() / 4, t = lane() % 4;
    float sums[SIDE / 8][4] = {};
    for (uint32_t base = 0; base < n_tile; base += DEPTH) {
        const uint32_t depth = min_of(DEPTH, n_tile - base);
        for (uint32_t i = threadIdx.x; i < DEPTH * SIDE; i += THREADS) {
            const uint32_t d = i % DEPTH, side = i / DEPTH;
            if (d >= depth) continue;
            const uint32_t index = base + d;
            // Beyond the last row, and activation, that one stands in.
            const uint64_t row = min_of(first_row + side, args.n_rows - 1);
            typename T::Tile tile;
            const uint64_t block = (uint64_t)(index / T::TILES) * T::BYTES;
            T::unpack(args.weight + row * args.row_bytes + block, index % T::TILES, tile);
            store_codes(w_codes[d][side], tile.codes);
#pragma unroll
            for (int part = 0; part < T::SCALES; part++) {
                w_scales[d][side][part] = tile.scale[part];
                if (T::HAS_MINS) w_minus_mins[d][side][part] = tile.minus_min[part];
            }
            const uint64_t at = (uint64_t)min_of(first + side, args.n - 1) * n_tile + index;
            const uint4 *codes = reinterpret_cast<const uint4 *>(args.codes + at * LANES);
            uint4 *words = reinterpret_cast<uint4 *>(x_codes[d][side]);
            words[0] = codes[0];
            words[1] = codes[1];
            x_scales[d][side] = args.scales[at];
        }
        __syncthreads();
        for (uint32_t d = 0; d < depth; d++) {
            uint32_t a[2][2];
            float scale[2][T::SCALES], minus_min[2][T::SCALES];
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t row = warp() * 16 + half * 8 + g;
                a[0][half] = w_codes[d][row][t];
                a[1][half] = w_codes[d][row][t + 4];
#pragma unroll
                for (int part = 0; part < T::SCALES; part++) {
                    scale[half][part] = w_scales[d][row][part];
                    minus_min[half][part] = T::HAS_MINS ? w_minus_mins[d][row][part] : 0.0f;
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < SIDE / 8; i++) {
                const uint32_t b[2] = {x_codes[d][8 * i + g][t], x_codes[d][8 * i + g][t + 4]};
                int32_t dots[T::SCALES][4] = {};
                if constexpr (T::SCALES == 1) {
                    add_products(dots[0], {a[0][0], a[0][1], a[1][0], a[1][1]}, b);
                } else {
                    add_products(dots[0], a[0], b[0]);
                    add_products(dots[1], a[1], b[1]);
                }
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    const Scale &x = x_scales[d][8 * i + 2 * t + j % 2];
                    int32_t of_element[T::SCALES];
#pragma unroll
                    for (int part = 0; part < T::SCALES; part++) of_element[part] = dots[part][j];
                    const float product = scaled<T>(of_element, scale[j / 2], minus_min[j / 2], x.sums);
                    sums[i][j] = fmaf(x.scale, product, sums[i][j]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < SIDE / 8; i++) {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t row = first_row + warp() * 16 + j / 2 * 8 + g;
            const uint32_t x = first + 8 * i + 2 * t + j % 2;
            if (row < args.n_rows && x < args.n) args.out[(uint64_t)x * args.n_rows + row] = sums[i][j];
        }
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
/// Of one weight, in codes.
KERNEL(matmul_many, THREADS, Matmul) {
    if constexpr (IsCoded<WEIGHT>::VALUE) multiply_many<WEIGHT>(args);
}
