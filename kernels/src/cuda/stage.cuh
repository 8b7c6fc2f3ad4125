// Some columns of rows of a weight and of activations, copied into memory that a block shares while it
// works on those before: the bytes as they are, in pieces of sixteen.
#pragma once
#include "activation.cuh"
#include "matmul.cuh"

/// Bytes that are copied together, from a multiple of that to another.
constexpr uint32_t PIECE = 16;

/// A place in memory that a block shares, as copies want it.
#ifdef __CUDACC__
typedef uint32_t SharedAddress;
DEVICE SharedAddress shared_address(void *place) { return (uint32_t)__cvta_generic_to_shared(place); }
#else
typedef uint64_t SharedAddress;
DEVICE SharedAddress shared_address(void *place) { return reinterpret_cast<uint64_t>(place); }
#endif

/// Begins to copy a piece, and does not wait for it.
DEVICE void begin_copy(SharedAddress to, const void *from) {
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from))
                 : "memory");
#else
    emulated::begin_copy(to, from, PIECE);
#endif
}

/// The copies begun since the last group are one.
DEVICE void end_group() {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emulated::end_group();
#endif
}

/// Waits for this thread's copies, but for those of the last LATER groups.
template <uint32_t LATER>
DEVICE void wait_for_groups() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
#else
    emulated::wait_for_groups(LATER);
#endif
}

/// DEPTH tiles of ROWS rows of a weight and of C rows of activations.
template <class T, uint32_t ROWS, uint32_t C, uint32_t DEPTH>
struct Stage {
    static_assert(DEPTH % T::TILES == 0 && DEPTH % QUAD == 0, "whole blocks, and whole pieces of scales");
    /// Of a row of the weight.
    static constexpr uint32_t BYTES = DEPTH / T::TILES * T::BYTES;
    /// The same in pieces: rows need not begin with one.
    static constexpr uint32_t PIECES = (BYTES + (T::ALIGN == 16 ? 0 : PIECE - T::ALIGN) + PIECE - 1) / PIECE;
    /// Of a row of activations.
    static constexpr uint32_t CODE_PIECES = DEPTH * LANES / PIECE;

    // An odd number of pieces from one row to the next: eight rows are in different banks.
    uint4 weight[ROWS][PIECES | 1];
    uint4 codes[C][CODE_PIECES | 1];

    /// What was copied of a row that lies in memory from `bytes` on.
    __device__ __forceinline__ const uint8_t *row(uint32_t r, const uint8_t *bytes) const {
        return reinterpret_cast<const uint8_t *>(weight[r]) + behind_piece(bytes);
    }

    /// The words `t` and `t + 4` of a tile of activations.
    __device__ __forceinline__ void load_codes(uint32_t c, uint32_t tile, uint32_t t,
                                               uint32_t (&out)[2]) const {
        const uint32_t *words = reinterpret_cast<const uint32_t *>(codes[c]) + tile * 8;
        out[0] = words[t];
        out[1] = words[t + 4];
    }

    /// How far behind the begin of a piece an address is.
    static __device__ __forceinline__ uint32_t behind_piece(const uint8_t *address) {
        return T::ALIGN == 16 ? 0 : (uint32_t)(reinterpret_cast<uint64_t>(address) % PIECE);
    }
};

/// What `activation.cuh` keeps of the activations of a stage.
template <uint32_t C, uint32_t DEPTH>
struct StageScales {
    static constexpr uint32_t QUADS = DEPTH / QUAD;

    // A quad more than there are: eight rows are in different banks.
    float4 quads[C][N_KIND * QUADS + 1];

    /// Numbers of one kind, of all tiles.
    __device__ __forceinline__ const float4 *of(uint32_t c, uint32_t kind) const {
        return quads[c] + kind * QUADS;
    }

    __device__ __forceinline__ float at(uint32_t c, uint32_t kind, uint32_t tile) const {
        return reinterpret_cast<const float *>(of(c, kind))[tile];
    }
};

/// What one of THREADS threads copies of each stage: of one row of the weight, and of one of activations.
template <class T, uint32_t ROWS, uint32_t C, uint32_t DEPTH, uint32_t THREADS>
struct Supply {
    typedef ::Stage<T, ROWS, C, DEPTH> Stage;
    typedef ::StageScales<C, DEPTH> StageScales;

    /// Threads that have the same row.
    static constexpr uint32_t TOGETHER = THREADS / ROWS, CODES_TOGETHER = THREADS / C;

    // From where: the thread's first piece of a row, or for scales the row.
    const uint8_t *weight;
    const int8_t *codes;
    const float *scales;
    // To where in the first stage: the thread's first piece.
    SharedAddress to_weight, to_codes, to_scales;
    uint32_t row_bytes, n_tile;

    __device__ __forceinline__ Supply(const Share<ROWS, C> &share, Stage &stage, StageScales &stage_scales) {
        const Matmul &args = share.args;
        n_tile = args.n_cols / LANES;
        row_bytes = args.row_bytes;
        const uint32_t r = threadIdx.x / TOGETHER, c = threadIdx.x / CODES_TOGETHER;
        const uint64_t x = share.input(c);
        weight = share.row(r);
        codes = args.codes + x * args.n_cols + piece_of_codes() * PIECE;
        scales = args.scales + x * N_KIND * kind_pitch(n_tile);
        to_weight = shared_address(stage.weight[r] + piece());
        to_codes = shared_address(stage.codes[c] + piece_of_codes());
        to_scales = shared_address(stage_scales.quads[c] + piece_of_codes());
    }

    /// The first that the thread copies.
    static __device__ __forceinline__ uint32_t piece() { return threadIdx.x % TOGETHER; }
    static __device__ __forceinline__ uint32_t piece_of_codes() { return threadIdx.x % CODES_TOGETHER; }

    /// Begins to copy the tiles from `first` on to one of several stages, and of scales, as one group; an
    /// empty one where there are none.
    __device__ __forceinline__ void begin(uint32_t first, uint32_t stage, uint32_t stage_scales) const {
        if (first < n_tile) {
            begin_weight(first, to_weight + stage * (uint32_t)sizeof(Stage));
            begin_codes(first, to_codes + stage * (uint32_t)sizeof(Stage));
            begin_scales(first, to_scales + stage_scales * (uint32_t)sizeof(StageScales));
        }
        end_group();
    }

    __device__ __forceinline__ void begin_weight(uint32_t first, SharedAddress to) const {
        const uint32_t start = first / T::TILES * T::BYTES;
        const uint32_t behind = Stage::behind_piece(weight + start);
        const uint8_t *from = weight + start - behind + piece() * PIECE;
        const uint32_t n = (behind + min_of(Stage::BYTES, row_bytes - start) + PIECE - 1) / PIECE;
#pragma unroll
        for (uint32_t i = 0; i < Stage::PIECES; i += TOGETHER) {
            if (i + piece() < n) begin_copy(to + i * PIECE, from + i * PIECE);
        }
    }

    __device__ __forceinline__ void begin_codes(uint32_t first, SharedAddress to) const {
        const int8_t *from = codes + first * LANES;
        const uint32_t n = min_of(DEPTH, n_tile - first) * (LANES / PIECE);
#pragma unroll
        for (uint32_t i = 0; i < Stage::CODE_PIECES; i += CODES_TOGETHER) {
            if (i + piece_of_codes() < n) begin_copy(to + i * PIECE, from + i * PIECE);
        }
    }

    __device__ __forceinline__ void begin_scales(uint32_t first, SharedAddress to) const {
        const uint32_t pitch = kind_pitch(n_tile);
#pragma unroll
        for (uint32_t i = 0; i < N_KIND * StageScales::QUADS; i += CODES_TOGETHER) {
            const uint32_t quad = i + piece_of_codes(), kind = quad / StageScales::QUADS;
            const uint32_t tile = first + quad % StageScales::QUADS * QUAD;
            if (kind < N_KIND && tile < n_tile) begin_copy(to + i * PIECE, scales + kind * pitch + tile);
        }
    }
};
