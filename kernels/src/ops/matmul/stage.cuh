// Stages: some columns of rows of a weight and of activations, copied to shared memory in pieces of sixteen bytes,
// unchanged, while the block computes on earlier stages.
#pragma once
#include "activation.cuh"
#include "matmul.cuh"

/// Bytes that are copied together, aligned to as many bytes.
constexpr uint32_t PIECE = 16;

/// An address in shared memory, as copy instructions take it.
#ifdef __CUDACC__
typedef uint32_t SharedAddress;
DEVICE SharedAddress shared_address(void *place) { return (uint32_t)__cvta_generic_to_shared(place); }
#else
typedef uint64_t SharedAddress;
DEVICE SharedAddress kept(SharedAddress value) { return value; }
DEVICE SharedAddress shared_address(void *place) { return reinterpret_cast<uint64_t>(place); }
#endif

/// Starts an asynchronous copy of a piece.
DEVICE void begin_copy(SharedAddress to, const void *from) {
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from))
                 : "memory");
#else
    emulated::begin_copy(to, from, PIECE);
#endif
}

/// Makes the copies started since the last group one group.
DEVICE void end_group() {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emulated::end_group();
#endif
}

/// Waits for this thread's copies, except those of the last LATER groups.
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
    /// Bytes of a row of the weight.
    static constexpr uint32_t BYTES = DEPTH / T::TILES * T::BYTES;
    /// Pieces of a row of the weight, which need not start at a piece.
    static constexpr uint32_t PIECES = (BYTES + (T::ALIGN == 16 ? 0 : PIECE - T::ALIGN) + PIECE - 1) / PIECE;
    /// Pieces of a row of activations.
    static constexpr uint32_t QUANT_PIECES = DEPTH * LANES / PIECE;

    // The distance of rows is an odd number of pieces, so that eight rows are in different banks.
    uint4 weight[ROWS][PIECES | 1];
    uint4 quants[C][QUANT_PIECES | 1];

    /// The offset of a row of the weight, in bytes.
    static __device__ __forceinline__ uint32_t row_place(uint32_t r) {
        return r * (uint32_t)sizeof(weight[0]);
    }

    /// The copy of a row whose address in memory is `bytes`.
    __device__ __forceinline__ const uint8_t *row(uint32_t place, const uint8_t *bytes) const {
        return reinterpret_cast<const uint8_t *>(weight) + place + behind_piece(bytes);
    }

    /// Words from one tile to the next, and from one row of activations to the next.
    static constexpr uint32_t TILE = LANES / 4, PITCH = 4 * (QUANT_PIECES | 1);

    /// The offset of word `t` of a tile of activations, in bytes.
    static __device__ __forceinline__ uint32_t quant_place(uint32_t c, uint32_t tile, uint32_t t) {
        return (c * PITCH + tile * TILE + t) * (uint32_t)sizeof(uint32_t);
    }

    /// The word at an offset and those that follow.
    __device__ __forceinline__ const uint32_t *words(uint32_t place) const {
        return reinterpret_cast<const uint32_t *>(reinterpret_cast<const uint8_t *>(quants) + place);
    }

    /// The distance of an address from the start of its piece.
    static __device__ __forceinline__ uint32_t behind_piece(const uint8_t *address) {
        return T::ALIGN == 16 ? 0 : (uint32_t)(reinterpret_cast<uint64_t>(address) % PIECE);
    }
};

/// The numbers of `activation.cuh` for the activations of a stage.
template <uint32_t C, uint32_t DEPTH>
struct StageScales {
    static constexpr uint32_t QUADS = DEPTH / QUAD;

    // One quad of padding, so that eight rows are in different banks.
    float4 quads[C][N_KIND * QUADS + 1];

    /// Floats from one kind to the next, and from one row of activations to the next.
    static constexpr uint32_t KIND = QUADS * QUAD, PITCH = (N_KIND * QUADS + 1) * QUAD;

    /// The offset of the first number of a tile, in bytes.
    static __device__ __forceinline__ uint32_t place(uint32_t c, uint32_t tile) {
        return (c * PITCH + tile) * (uint32_t)sizeof(float);
    }

    /// The number at an offset and those that follow.
    __device__ __forceinline__ const float *numbers(uint32_t place) const {
        return reinterpret_cast<const float *>(reinterpret_cast<const uint8_t *>(quads) + place);
    }
};

/// The part of each stage that one of THREADS threads copies: pieces of one row of the weight and of one row of
/// activations.
template <class T, uint32_t ROWS, uint32_t C, uint32_t DEPTH, uint32_t THREADS>
struct Supply {
    typedef ::Stage<T, ROWS, C, DEPTH> Stage;
    typedef ::StageScales<C, DEPTH> StageScales;

    /// Threads that share a row.
    static constexpr uint32_t TOGETHER = THREADS / ROWS, QUANTS_TOGETHER = THREADS / C;

    /// Quads of scales that a thread copies.
    static constexpr uint32_t QUADS = (N_KIND * StageScales::QUADS + QUANTS_TOGETHER - 1) / QUANTS_TOGETHER;

    // Sources: the thread's first piece of the first stage, and each of its quads.
    const uint8_t *weight;
    const int8_t *quants;
    const float *scales[QUADS];
    // Destinations in the first stage.
    SharedAddress to_weight, to_quants, to_scales;
    /// Index among the threads that share a row.
    uint32_t piece, piece_of_quants;
    uint32_t row_bytes, n_tile;
    /// False if the thread's column is past the end; its results are not written.
    bool has_column;

    __device__ __forceinline__ Supply(const Share<ROWS, C> &share, Stage &stage, StageScales &stage_scales) {
        const Matmul &args = share.args;
        n_tile = args.n_cols / LANES;
        row_bytes = args.row_bytes;
        piece = kept(threadIdx.x % TOGETHER), piece_of_quants = kept(threadIdx.x % QUANTS_TOGETHER);
        const uint32_t r = threadIdx.x / TOGETHER, c = threadIdx.x / QUANTS_TOGETHER;
        has_column = c < share.count;
        const uint64_t x = share.input(c);
        weight = kept(share.row(r) + piece * PIECE);
        quants = kept(args.quants + x * args.n_cols + piece_of_quants * PIECE);
        const uint32_t pitch = kind_pitch(n_tile);
#pragma unroll
        for (uint32_t i = 0; i < QUADS; i++) {
            const uint32_t quad = quad_of(i);
            scales[i] = kept(args.scales + (x * N_KIND + quad / StageScales::QUADS) * pitch + tile_of(quad));
        }
        to_weight = kept(shared_address(stage.weight[r] + piece));
        to_quants = kept(shared_address(stage.quants[c] + piece_of_quants));
        to_scales = kept(shared_address(stage_scales.quads[c] + piece_of_quants));
    }

    /// One of the thread's quads, and its first tile.
    __device__ __forceinline__ uint32_t quad_of(uint32_t i) const {
        return i * QUANTS_TOGETHER + piece_of_quants;
    }
    static __device__ __forceinline__ uint32_t tile_of(uint32_t quad) {
        return quad % StageScales::QUADS * QUAD;
    }

    /// Starts to copy the tiles of stage `n` to the given stage and scales, as one group; the group is empty past
    /// the last stage.
    __device__ __forceinline__ void begin(uint32_t n, uint32_t stage, uint32_t stage_scales) const {
        const SharedAddress to_stage = stage * (uint32_t)sizeof(Stage);
        const SharedAddress to_stage_scales = stage_scales * (uint32_t)sizeof(StageScales);
        if ((n + 1) * DEPTH < n_tile) {
            copy<true>(n, to_stage, to_stage_scales);
        } else if (n * DEPTH < n_tile) {
            copy<false>(n, to_stage, to_stage_scales);
        }
        end_group();
    }

    /// WHOLE: another stage follows, so that reading a piece too much is harmless.
    template <bool WHOLE>
    __device__ __forceinline__ void copy(uint32_t n, SharedAddress to_stage,
                                         SharedAddress to_stage_scales) const {
        const uint32_t left = n_tile - n * DEPTH;
        const uint8_t *from = weight + (uint64_t)n * Stage::BYTES;
        const uint32_t behind = Stage::behind_piece(from);
        const uint32_t bytes = behind + min_of(Stage::BYTES, row_bytes - n * Stage::BYTES);
        const uint32_t n_piece = WHOLE ? Stage::PIECES : (bytes + PIECE - 1) / PIECE;
#pragma unroll
        for (uint32_t i = 0; i < Stage::PIECES; i += TOGETHER) {
            if (i + piece < n_piece) begin_copy(to_weight + to_stage + i * PIECE, from - behind + i * PIECE);
        }
        if (!has_column) return;
        const uint32_t n_code_piece = WHOLE ? Stage::QUANT_PIECES : min_of(DEPTH, left) * (LANES / PIECE);
#pragma unroll
        for (uint32_t i = 0; i < Stage::QUANT_PIECES; i += QUANTS_TOGETHER) {
            if (i + piece_of_quants >= n_code_piece) continue;
            begin_copy(to_quants + to_stage + i * PIECE, quants + (uint64_t)n * (DEPTH * LANES) + i * PIECE);
        }
#pragma unroll
        for (uint32_t i = 0; i < QUADS; i++) {
            const uint32_t quad = quad_of(i);
            if (quad >= N_KIND * StageScales::QUADS || !(WHOLE || tile_of(quad) < left)) continue;
            const SharedAddress to = to_scales + to_stage_scales + i * QUANTS_TOGETHER * PIECE;
            begin_copy(to, scales[i] + (uint64_t)n * DEPTH);
        }
    }
};
