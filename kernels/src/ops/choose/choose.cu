// The largest element of each row: the tokens of greedy decoding.
#include "common.cuh"

constexpr uint32_t THREADS = 1024;
constexpr uint32_t WARPS = THREADS / LANES;
/// Elements that a thread loads before it compares the first.
constexpr uint32_t EACH = 16;

struct Choose {
    const float *x;
    /// The token of each element; null if the token is the index of the element.
    const uint32_t *names;
    uint32_t *tokens;
    float *values;
    uint32_t dim;
};

/// Maps a number to an integer of the same order: both zeros are equal, and NaN ranks as infinity.
DEVICE int32_t rank(float x) {
    if (x != x) return 0x7f800000;
    const int32_t bits = (int32_t)__float_as_uint(x + 0.0f);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

struct Best {
    int32_t rank;
    uint32_t place;
};

/// Returns the larger element, the first one if both are equal. The order of comparisons does not matter.
DEVICE Best better(Best a, Best b) {
    const bool is_first = a.rank > b.rank || (a.rank == b.rank && a.place < b.place);
    return is_first ? a : b;
}

DEVICE Best best_of_lanes(Best best) {
#pragma unroll
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        Best other;
        other.rank = __shfl_xor_sync(ALL_LANES, best.rank, half);
        other.place = __shfl_xor_sync(ALL_LANES, best.place, half);
        best = better(best, other);
    }
    return best;
}

/// One block per row.
KERNEL(choose, THREADS, Choose) {
    __shared__ int32_t ranks[WARPS];
    __shared__ uint32_t places[WARPS];
    const float *x = args.x + (uint64_t)blockIdx.x * args.dim;
    Best best = {(int32_t)0x80000000, NONE};
    for (uint32_t base = threadIdx.x; base < args.dim; base += EACH * THREADS) {
        float elements[EACH];
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) elements[k] = x[min_of(base + k * THREADS, args.dim - 1)];
        // The last element may be compared several times.
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) {
            best = better(best, {rank(elements[k]), min_of(base + k * THREADS, args.dim - 1)});
        }
    }
    best = best_of_lanes(best);
    if (lane() == 0) {
        ranks[warp()] = best.rank;
        places[warp()] = best.place;
    }
    __syncthreads();
    if (warp() != 0) return;
    const uint32_t i = lane() % WARPS;
    best = best_of_lanes({ranks[i], places[i]});
    if (lane() == 0) {
        args.tokens[blockIdx.x] = args.names == nullptr ? best.place : args.names[best.place];
        args.values[blockIdx.x] = x[best.place];
    }
}
