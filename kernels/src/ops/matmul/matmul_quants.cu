// Products of activations with a quantized weight of type WEIGHT, or with experts. Compiled for each type.
//
// An output element is one chain of additions, tile after tile, in the CPU's order (see
// `kernels/src/ops/matmul/cpu_quants.rs`). Tensor cores compute the integers of a tile, a thread the tile's
// product, and one thread per element adds the products in order. The result does not depend on the other
// elements of the block.
//
// With few activations memory bandwidth is the limit: a block has few rows, its warps divide the tiles of a stage
// among them and pass products to the threads that add them. With many activations each thread adds the products
// that it computes.
#include "unpack.cuh"
#include "stage.cuh"
#include "tensor.cuh"

constexpr uint32_t THREADS = 256;
constexpr uint32_t N_WARP = THREADS / LANES;

/// Rows and columns of one tensor core operation.
constexpr uint32_t SET = 16, COLUMNS = 8;

/// The product of one tile, without the scale of the activations. `dots` are sums of products of quants, `sums`
/// sums of the quants of the activations, one for each scale.
template <class T>
DEVICE float product(const int32_t (&dots)[T::SCALES], const typename T::Scales &w,
                     const float (&sums)[T::SCALES]) {
    float product = 0.0f;
#pragma unroll
    for (int part = 0; part < T::SCALES; part++) {
        // Exact: all of these are small integers.
        float dot = (float)dots[part];
        if (T::OFFSET != 0) dot = fmaf((float)-T::OFFSET, sums[part], dot);
        product = part == 0 ? w.scale[0] * dot : fmaf(w.scale[part], dot, product);
        if (T::HAS_MINS) product = fmaf(w.minus_min[part], sums[part], product);
    }
    return product;
}

/// Sums of the quants of a tile, one for each scale of T, from the sum of all and of the second half.
template <class T>
DEVICE void split_sums(float all, float second, float (&sums)[T::SCALES]) {
    sums[0] = T::SCALES == 1 ? all : all - second;
    if constexpr (T::SCALES == 2) sums[1] = second;
}

/// The scales of lane `source`.
template <class T>
DEVICE typename T::Scales scales_of_lane(const typename T::Scales &own, uint32_t source) {
    typename T::Scales out;
#pragma unroll
    for (int part = 0; part < T::SCALES; part++) {
        out.scale[part] = __shfl_sync(ALL_LANES, own.scale[part], source);
        if (T::HAS_MINS) out.minus_min[part] = __shfl_sync(ALL_LANES, own.minus_min[part], source);
    }
    return out;
}

/// Words of rows g and g + 8 of a tile, in the layout of tensor cores. The tile is `more` tiles after the tile
/// `first` of the blocks.
template <class T>
DEVICE void load_rows(const uint8_t *const (&blocks)[2], uint32_t first, uint32_t more, uint32_t t,
                      uint32_t (&a)[4]) {
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t quants[2];
        T::quants(T::block_after(blocks[half], more), T::index_after(first, more), t, quants);
        a[half] = quants[0];
        a[half + 2] = quants[1];
    }
}

/// Integer products of 16 rows and 8 columns of a tile, one set for each scale.
template <class T>
DEVICE void multiply_tile(int32_t (&dots)[T::SCALES][4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (T::SCALES == 1) {
        add_products(dots[0], a, b);
    } else {
        add_products(dots[0], {a[0], a[1]}, b[0]);
        add_products(dots[1], {a[2], a[3]}, b[1]);
    }
}

/// The next and the previous of N stages in a ring.
template <uint32_t N>
DEVICE uint32_t after(uint32_t i) {
    return i + 1 < N ? i + 1 : 0;
}
template <uint32_t N>
DEVICE uint32_t before(uint32_t i) {
    return i > 0 ? i - 1 : N - 1;
}

/// Rows of a block with few activations.
constexpr uint32_t ROWS = 32;

/// Products of the tiles of one stage.
template <uint32_t C, uint32_t DEPTH>
struct Products {
    static constexpr uint32_t QUADS = DEPTH / QUAD;

    float4 quads[C * ROWS * QUADS];

    /// The offset of the products of QUAD neighbouring tiles, in bytes. The order of quads depends on the row and
    /// the column, so that threads that write or read together use different banks.
    static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t column, uint32_t quad) {
        const uint32_t in_row = quad ^ (row / (8 / QUADS) + column / 2) % QUADS;
        return ((column * ROWS + row) * QUADS + in_row) * (uint32_t)sizeof(float4);
    }

    /// The first product at an offset.
    __device__ __forceinline__ float *at(uint32_t place) {
        return reinterpret_cast<float *>(reinterpret_cast<uint8_t *>(quads) + place);
    }
};

template <class T, uint32_t C, uint32_t DEPTH>
struct FewShared {
    typedef ::Supply<T, ROWS, C, DEPTH, THREADS> Supply;
    typedef typename Supply::Stage Stage;
    typedef typename Supply::StageScales StageScales;

    static constexpr uint32_t ROOM = MOST_SHARED - 2 * sizeof(Products<C, DEPTH>) - sizeof(StageScales);
    static constexpr uint32_t FITTING = ROOM / (sizeof(Stage) + sizeof(StageScales));
    static constexpr uint32_t STAGES = FITTING < 6 ? FITTING : 6;

    Stage stages[STAGES];
    // One more stage: scales are needed until the products are added.
    StageScales scales[STAGES + 1];
    // The products of one stage are added while those of the next are computed.
    Products<C, DEPTH> products[2];
};

/// Multiplies C activations, one or eight.
template <class T, uint32_t C>
struct Few {
    static_assert(C == 1 || C == COLUMNS, "all tiles of one activation, or a tile of all columns");

    /// Tiles per stage, fewer if four stages would not fit.
    static constexpr uint32_t MOST = C == 1 ? 32 : 16;
    static constexpr uint32_t DEPTH = FewShared<T, C, MOST>::FITTING < 4 ? MOST / 2 : MOST;
    typedef FewShared<T, C, DEPTH> Shared;
    typedef typename Shared::Stage Stage;
    typedef typename Shared::StageScales StageScales;
    typedef Products<C, DEPTH> Made;

    /// Tiles and sets of rows of a warp.
    static constexpr uint32_t TILES = C == 1 ? 4 : LANES / SET;
    static constexpr uint32_t SETS = ROWS / SET * (DEPTH / TILES) / N_WARP;

    // The lane is `4 g + t`.
    const uint32_t g = lane() / 4, t = lane() % 4;
    const uint32_t first_tile = warp() % (DEPTH / TILES) * TILES;
    const uint32_t first_row = SETS * SET == ROWS ? 0 : warp() / (DEPTH / TILES) * SETS * SET;
    /// The row (within its set) and the tile whose scales this lane decodes for others; only for several columns.
    const uint32_t own_row = first_row + lane() % SET, own_tile = first_tile + lane() / SET;
    /// Addresses of rows g and g + 8 of each set, and of `row`.
    const uint8_t *rows[SETS][2];
    const uint8_t *own_rows[SETS];
    /// These tiles within their blocks.
    const uint32_t in_block = kept(first_tile % T::TILES), own_in_block = kept(own_tile % T::TILES);
    // Offsets in a stage of the blocks of row g and of `row` and of the lane's first quants and numbers, and the
    // offset of the lane's result among the products.
    const uint32_t block = kept(Stage::row_place(first_row + g) + first_tile / T::TILES * T::BYTES);
    const uint32_t own_block = kept(Stage::row_place(own_row) + own_tile / T::TILES * T::BYTES);
    const uint32_t quants = kept(C == 1 ? Stage::quant_place(0, first_tile + g / 2, t)
                                       : Stage::quant_place(g, first_tile, t));
    const uint32_t sums = kept(C == 1 ? StageScales::place(0, first_tile + t)
                                      : StageScales::place(2 * t, first_tile));
    const uint32_t made = kept(Made::place(first_row + g, C == 1 ? 0 : 2 * t, first_tile / QUAD) +
                               (C == 1 ? t : first_tile % QUAD) * (uint32_t)sizeof(float));

    __device__ __forceinline__ explicit Few(const Share<ROWS, C> &share) {
#pragma unroll
        for (uint32_t set = 0; set < SETS; set++) {
            rows[set][0] = share.row(first_row + SET * set + g);
            rows[set][1] = share.row(first_row + SET * set + 8 + g);
            own_rows[set] = share.row(own_row + SET * set);
        }
    }

    static __device__ __forceinline__ void run(const Matmul &args) {
        const Share<ROWS, C> share(args);
        if (share.count == 0) return;
        Shared &shared = shared_memory<Shared>();
        const typename Shared::Supply supply(share, shared.stages[0], shared.scales[0]);
        const Few few(share);
        const Sum sum;
        const uint32_t n_tile = args.n_cols / LANES;
        constexpr uint32_t STAGES = Shared::STAGES, SCALES = Shared::STAGES + 1;
#pragma unroll
        for (uint32_t i = 0; i < STAGES - 1; i++) supply.begin(i, i, i);
        uint32_t stage = 0, scales = 0, turn = 0;
        float value = 0.0f;
        for (uint32_t n = 0; n * DEPTH < n_tile; n++) {
            wait_for_groups<STAGES - 2>();
            // After this barrier the stage is complete, the previous stage is free, and its products are complete.
            __syncthreads();
            const uint32_t scales_before = before<SCALES>(scales);
            supply.begin(n + STAGES - 1, before<STAGES>(stage), before<SCALES>(scales_before));
            few.multiply(shared.stages[stage], shared.scales[scales], n, shared.products[turn]);
            if (n > 0) sum.add(shared.products[turn ^ 1], shared.scales[scales_before], DEPTH, value);
            stage = after<STAGES>(stage), scales = after<SCALES>(scales), turn ^= 1;
        }
        __syncthreads();
        const uint32_t n_last = (n_tile - 1) % DEPTH + 1;
        sum.add(shared.products[turn ^ 1], shared.scales[before<SCALES>(scales)], n_last, value);
        if (threadIdx.x < ROWS * C) share.put(threadIdx.x % ROWS, threadIdx.x / ROWS, value);
    }

    /// One thread per element adds the products of the tiles.
    struct Sum {
        uint32_t products[Made::QUADS];
        uint32_t scales;

        __device__ __forceinline__ Sum() {
            const uint32_t row = threadIdx.x % ROWS, column = min_of(threadIdx.x / ROWS, C - 1);
#pragma unroll
            for (uint32_t i = 0; i < Made::QUADS; i++) products[i] = kept(Made::place(row, column, i));
            scales = kept(StageScales::place(column, 0));
        }

        /// The first `n` tiles of a stage.
        __device__ __forceinline__ void add(Made &made, const StageScales &stage_scales, uint32_t n,
                                            float &value) const {
            if (threadIdx.x >= ROWS * C) return;
            const float *numbers = stage_scales.numbers(scales) + SCALE * StageScales::KIND;
#pragma unroll
            for (uint32_t i = 0; i < Made::QUADS; i++) {
                const float4 scale = reinterpret_cast<const float4 *>(numbers)[i];
                const float4 product = *reinterpret_cast<const float4 *>(made.at(products[i]));
                if (QUAD * i + 0 < n) value = fmaf(scale.x, product.x, value);
                if (QUAD * i + 1 < n) value = fmaf(scale.y, product.y, value);
                if (QUAD * i + 2 < n) value = fmaf(scale.z, product.z, value);
                if (QUAD * i + 3 < n) value = fmaf(scale.w, product.w, value);
            }
        }
    };

    /// Computes the products of a warp for stage `n`.
    __device__ __forceinline__ void multiply(const Stage &stage, const StageScales &scales, uint32_t n,
                                             Made &products) const {
        const uint32_t behind = n * Stage::BYTES;
        const uint8_t *blocks[SETS][2], *own_blocks[SETS];
#pragma unroll
        for (uint32_t set = 0; set < SETS; set++) {
            const uint32_t more = Stage::row_place(SET * set);
            blocks[set][0] = stage.row(block, rows[set][0] + behind) + more;
            blocks[set][1] = stage.row(block, rows[set][1] + behind) + more + Stage::row_place(8);
            own_blocks[set] = stage.row(own_block, own_rows[set] + behind) + more;
        }
        float *to = products.at(made);
        if constexpr (C == 1) {
            multiply_one(stage, scales, blocks, to);
        } else {
            multiply_columns(stage, scales, blocks, own_blocks, to);
        }
    }

    /// One activation: each tile becomes two columns that are zero outside of that tile, or outside of half of it if
    /// halves have their own scales. All tiles are then one product, and each lane has one tile of two rows.
    __device__ __forceinline__ void multiply_one(const Stage &stage, const StageScales &scales,
                                                 const uint8_t *const (&blocks)[SETS][2], float *to) const {
        const uint32_t *words = stage.words(quants);
        const uint32_t x[2] = {words[0], words[4]};
        uint32_t b[TILES][2];
#pragma unroll
        for (uint32_t tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const bool is_its = g / 2 == tile && (T::SCALES == 1 || g % 2 == half);
                b[tile][half] = x[half] & (is_its ? 0xffffffffu : 0);
            }
        }
        // The lane's tile is the first plus `t`.
        const uint8_t *own_blocks[2 * SETS];
#pragma unroll
        for (uint32_t i = 0; i < 2 * SETS; i++) own_blocks[i] = T::block_after(blocks[i / 2][i % 2], t);
        typename T::Scales w[2 * SETS];
        load_scales<T>(own_blocks, T::index_after(in_block, t), w);
        const float *numbers = scales.numbers(sums);
        float of_quants[T::SCALES];
        split_sums<T>(numbers[SUM * StageScales::KIND], numbers[SECOND_SUM * StageScales::KIND], of_quants);
#pragma unroll
        for (uint32_t set = 0; set < SETS; set++) {
            int32_t dots[4] = {};
#pragma unroll
            for (uint32_t tile = 0; tile < TILES; tile++) {
                uint32_t a[4];
                load_rows<T>(blocks[set], in_block, tile, t, a);
                add_products(dots, a, b[tile]);
            }
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                int32_t of_tile[T::SCALES];
#pragma unroll
                for (int part = 0; part < T::SCALES; part++) of_tile[part] = dots[2 * half + part];
                to[(SET * set + 8 * half) * DEPTH] = product<T>(of_tile, w[2 * set + half], of_quants);
            }
        }
    }

    /// Several activations, one per column.
    __device__ __forceinline__ void multiply_columns(const Stage &stage, const StageScales &scales,
                                                     const uint8_t *const (&blocks)[SETS][2],
                                                     const uint8_t *const (&own_blocks)[SETS],
                                                     float *to) const {
        const uint32_t *words = stage.words(quants);
        const float *numbers = scales.numbers(sums);
        uint32_t b[TILES][2];
        float of_quants[TILES][2][T::SCALES];
#pragma unroll
        for (uint32_t i = 0; i < TILES; i++) {
            b[i][0] = words[i * Stage::TILE];
            b[i][1] = words[i * Stage::TILE + 4];
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) {
                const float *own = numbers + j * StageScales::PITCH + i;
                split_sums<T>(own[SUM * StageScales::KIND], own[SECOND_SUM * StageScales::KIND],
                              of_quants[i][j]);
            }
        }
        typename T::Scales own_scales[SETS];
        load_scales<T>(own_blocks, own_in_block, own_scales);
#pragma unroll
        for (uint32_t set = 0; set < SETS; set++) {
            float made[4][TILES];
#pragma unroll
            for (uint32_t i = 0; i < TILES; i++) {
                uint32_t a[4];
                load_rows<T>(blocks[set], in_block, i, t, a);
                int32_t dots[T::SCALES][4] = {};
                multiply_tile<T>(dots, a, b[i]);
                const typename T::Scales w[2] = {scales_of_lane<T>(own_scales[set], SET * i + g),
                                                 scales_of_lane<T>(own_scales[set], SET * i + 8 + g)};
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    int32_t of_element[T::SCALES];
#pragma unroll
                    for (int part = 0; part < T::SCALES; part++) of_element[part] = dots[part][j];
                    made[j][i] = product<T>(of_element, w[j / 2], of_quants[i][j % 2]);
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                const uint32_t row = SET * set + j / 2 * 8, column = j % 2;
                float *pair = to + (column * ROWS + row) * DEPTH;
                *reinterpret_cast<float2 *>(pair) = {made[j][0], made[j][1]};
            }
        }
    }
};

/// Rows and activations of a block with many activations.
constexpr uint32_t SIDE = 64;

template <class T>
struct Many {
    static constexpr uint32_t DEPTH = 8;
    typedef ::Supply<T, SIDE, SIDE, DEPTH, THREADS> Supply;
    typedef typename Supply::Stage Stage;
    typedef typename Supply::StageScales StageScales;

    struct Shared {
        static constexpr uint32_t EACH = sizeof(Stage) + sizeof(StageScales);
        static constexpr uint32_t STAGES = MOST_SHARED / EACH < 3 ? MOST_SHARED / EACH : 3;

        Stage stages[STAGES];
        StageScales scales[STAGES];
    };

    /// Tiles whose scales are decoded together: a row and a tile for each lane.
    static constexpr uint32_t TILES = LANES / SET;
    /// A warp has one set of rows and half of the activations.
    static constexpr uint32_t SETS = SIDE / SET, PARTS = SIDE / COLUMNS / (N_WARP / SETS);

    static __device__ __forceinline__ void run(const Matmul &args) {
        const Share<SIDE, SIDE> share(args);
        if (share.count == 0) return;
        Shared &shared = shared_memory<Shared>();
        const Supply supply(share, shared.stages[0], shared.scales[0]);
        const uint32_t n_tile = args.n_cols / LANES;
        const uint32_t first_row = warp() % SETS * SET, first_column = warp() / SETS * PARTS * COLUMNS;
        const uint32_t g = lane() / 4, t = lane() % 4;
        const uint32_t own_row = first_row + lane() % SET;
        const uint32_t row_place = kept(Stage::row_place(first_row + g));
        const uint32_t own_place = kept(Stage::row_place(own_row));
        const uint32_t quant_place = kept(Stage::quant_place(first_column + g, 0, t));
        const uint32_t number_place = kept(StageScales::place(first_column + 2 * t, 0));
        const uint8_t *const rows[2] = {share.row(first_row + g), share.row(first_row + 8 + g)};
        const uint8_t *const own = share.row(own_row);
        float sums[PARTS][4] = {};
        constexpr uint32_t STAGES = Shared::STAGES;
#pragma unroll
        for (uint32_t i = 0; i < STAGES - 1; i++) supply.begin(i, i, i);
        uint32_t now = 0;
        for (uint32_t n = 0; n * DEPTH < n_tile; n++) {
            wait_for_groups<STAGES - 2>();
            // After this barrier the stage is complete, and the previous stage is free.
            __syncthreads();
            const uint32_t next = before<STAGES>(now);
            supply.begin(n + STAGES - 1, next, next);
            const Stage &stage = shared.stages[now];
            const uint32_t *words = stage.words(quant_place);
            const float *numbers = shared.scales[now].numbers(number_place);
            const uint32_t behind = n * Stage::BYTES, first = n * DEPTH;
            const uint8_t *const starts[2] = {
                stage.row(row_place, rows[0] + behind),
                stage.row(row_place, rows[1] + behind) + Stage::row_place(8)};
            const uint8_t *const own_start = stage.row(own_place, own + behind);
#pragma unroll 1
            for (uint32_t tile = 0; tile < min_of(DEPTH, n_tile - first); tile += TILES) {
                typename T::Scales own_scales;
                const uint32_t own_tile = tile + lane() / SET;
                T::scales(T::block(own_start, own_tile), own_tile % T::TILES, own_scales);
                const uint8_t *const blocks[2] = {T::block(starts[0], tile), T::block(starts[1], tile)};
#pragma unroll(T::SCALES == 1 ? TILES : 1)
                for (uint32_t i = 0; i < TILES; i++) {
                    if (first + tile + i >= n_tile) break;
                    const typename T::Scales w[2] = {scales_of_lane<T>(own_scales, SET * i + g),
                                                     scales_of_lane<T>(own_scales, SET * i + 8 + g)};
                    uint32_t a[4];
                    load_rows<T>(blocks, tile % T::TILES, i, t, a);
                    add_tile(sums, words + (tile + i) * Stage::TILE, numbers + tile + i, a, w);
                }
            }
            now = after<STAGES>(now);
        }
#pragma unroll
        for (uint32_t part = 0; part < PARTS; part++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t column = first_column + COLUMNS * part + 2 * t + i % 2;
                share.put(first_row + i / 2 * 8 + g, column, sums[part][i]);
            }
        }
    }

    /// Adds the products of a tile to all elements of a thread.
    static __device__ __forceinline__ void add_tile(float (&sums)[PARTS][4], const uint32_t *words,
                                                    const float *numbers, const uint32_t (&a)[4],
                                                    const typename T::Scales (&w)[2]) {
#pragma unroll
        for (uint32_t part = 0; part < PARTS; part++) {
            const uint32_t *part_words = words + COLUMNS * part * Stage::PITCH;
            const uint32_t b[2] = {part_words[0], part_words[4]};
            int32_t dots[T::SCALES][4] = {};
            multiply_tile<T>(dots, a, b);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const float *own = numbers + (COLUMNS * part + i % 2) * StageScales::PITCH;
                float of_quants[T::SCALES];
                split_sums<T>(own[SUM * StageScales::KIND], own[SECOND_SUM * StageScales::KIND], of_quants);
                int32_t of_element[T::SCALES];
#pragma unroll
                for (int k = 0; k < T::SCALES; k++) of_element[k] = dots[k][i];
                const float scale = own[SCALE * StageScales::KIND];
                sums[part][i] = fmaf(scale, product<T>(of_element, w[i / 2], of_quants), sums[part][i]);
            }
        }
    }
};

typedef Few<WEIGHT, 1> One;
typedef Few<WEIGHT, 8> Eight;

KERNEL_SHARING(multiply_1, THREADS, Joined<Matmul>, One::Shared) { One::run(args.each[blockIdx.z]); }
KERNEL_SHARING(multiply_8, THREADS, Joined<Matmul>, Eight::Shared) { Eight::run(args.each[blockIdx.z]); }
/// Products without groups of experts.
KERNEL_SHARING(multiply_many, THREADS, Joined<Matmul>, Many<WEIGHT>::Shared) {
    Many<WEIGHT>::run(args.each[blockIdx.z]);
}
