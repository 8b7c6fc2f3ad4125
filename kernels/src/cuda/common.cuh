// Types, warps, and reductions in the order of the CPU's kernels.
//
// Arithmetic is IEEE single precision, compiled without contraction of `a * b + c`: a kernel that needs one
// rounding calls `fmaf`. Results therefore equal those of the CPU bit for bit.
#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

// A kernel takes one struct of arguments, which Rust code declares with the same fields.
#ifndef KERNEL
#define KERNEL(name, threads, Args) \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const Args args)
#endif

/// A kernel whose blocks use dynamic shared memory for one `Shared`. Its launch must request MOST_SHARED bytes.
#ifndef KERNEL_SHARING
#define KERNEL_SHARING(name, threads, Args, Shared)                             \
    static_assert(sizeof(Shared) <= MOST_SHARED, "more than blocks can share"); \
    extern "C" __global__ void __launch_bounds__(threads, 2) name(const Args args)
#endif

/// Arguments of launches that were joined into one: block index z selects a struct. The grid is as large as the
/// largest of them needs.
constexpr uint32_t MAX_JOINED = 3;
template <class Args>
struct Joined {
    Args each[MAX_JOINED];
};

#define DEVICE static __device__ __forceinline__

/// Threads of a warp, lanes of a reduction, and elements of the smallest quantized block.
constexpr uint32_t LANES = 32;

constexpr uint32_t ALL_LANES = 0xffffffffu;

/// Bytes of shared memory per block that every supported device offers; larger devices run two such blocks on
/// one multiprocessor.
constexpr uint32_t MOST_SHARED = 99 << 10;

/// An entry of an index table that stands for no index.
constexpr uint32_t NONE = 0xffffffffu;

/// Returns the dynamic shared memory of the block.
template <class Shared>
DEVICE Shared &shared_memory() {
#ifdef __CUDACC__
    extern __shared__ uint4 memory[];
    return *reinterpret_cast<Shared *>(memory);
#else
    static Shared memory;
    return memory;
#endif
}

/// Keeps a value in a register that the compiler would otherwise compute again in each iteration.
DEVICE uint32_t kept(uint32_t value) {
#ifdef __CUDACC__
    asm volatile("" : "+r"(value));
#endif
    return value;
}

/// `kept` for an address in device memory.
template <class V>
DEVICE V *kept(V *place) {
#ifdef __CUDACC__
    asm volatile("" : "+l"(place));
#endif
    return place;
}

DEVICE uint32_t lane() { return threadIdx.x % LANES; }

DEVICE uint32_t warp() { return threadIdx.x / LANES; }

/// The index of the thread along x.
DEVICE uint64_t place() { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }

DEVICE uint32_t min_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

DEVICE uint32_t max_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

/// The sum of all lanes, returned in all of them: lane `l` adds lane `l + 16`, then `l + 8`, `l + 4`, ...
DEVICE float sum_lanes(float value) {
#pragma unroll
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, half);
    }
    return value;
}

/// The largest value of all lanes, returned in all of them.
DEVICE float max_lanes(float value) {
#pragma unroll
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, half));
    }
    return value;
}

/// Converts half precision to single precision.
DEVICE float half_to_float(uint16_t bits) {
#ifdef __CUDACC__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    return emulated::half_to_float(bits);
#endif
}

/// Converts bfloat16 to single precision.
DEVICE float bfloat_to_float(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }

/// Bytes of a memory transaction.
constexpr uint32_t LINE = 128;

/// Prefetches a line of memory.
DEVICE void prefetch(const uint8_t *bytes) {
#ifdef __CUDACC__
    asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(bytes)));
#endif
}

/// Loads sixteen bits from any even address.
DEVICE uint16_t load_u16(const uint8_t *bytes) { return *reinterpret_cast<const uint16_t *>(bytes); }

/// Loads sixteen bytes from an address that is a multiple of 16, as words.
DEVICE void load_quad(const uint8_t *bytes, uint32_t (&words)[4]) {
    const uint4 quad = *reinterpret_cast<const uint4 *>(bytes);
    words[0] = quad.x, words[1] = quad.y, words[2] = quad.z, words[3] = quad.w;
}

/// Loads a word from an address that is a multiple of ALIGN. If ALIGN is 1, it reads the whole words that contain
/// the first and the last byte; allocations are whole words.
template <int ALIGN>
DEVICE uint32_t load_word(const uint8_t *bytes) {
    if constexpr (ALIGN % 4 == 0) {
        return *reinterpret_cast<const uint32_t *>(bytes);
    } else if constexpr (ALIGN == 2) {
        return load_u16(bytes) | (uint32_t)load_u16(bytes + 2) << 16;
    } else {
        const uint32_t shift = (uint32_t)(reinterpret_cast<uint64_t>(bytes) % 4);
        const uint32_t *first = reinterpret_cast<const uint32_t *>(bytes - shift);
        const uint32_t *last = reinterpret_cast<const uint32_t *>(bytes - shift + (shift == 0 ? 0 : 4));
        return __funnelshift_r(*first, *last, 8 * shift);
    }
}
