// What all kernels share: types, warps, reductions in the order of the processor's kernels.
//
// Arithmetic is IEEE single precision, compiled without contraction of `a * b + c`: a kernel that
// means one rounding says `fmaf`. So it gives the bits of its twin in `kernels/src/cpu`.
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

// A kernel takes one struct of arguments; its twin in Rust fills in the same fields.
#ifndef KERNEL
#define KERNEL(name, threads, Args) \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const Args args)
#endif

/// The same for a kernel whose blocks each share one `Shared`: so much memory that whoever launches it
/// must ask the device for MOST_SHARED.
#ifndef KERNEL_SHARING
#define KERNEL_SHARING(name, threads, Args, Shared)                             \
    static_assert(sizeof(Shared) <= MOST_SHARED, "more than blocks can share"); \
    extern "C" __global__ void __launch_bounds__(threads, 2) name(const Args args)
#endif

/// Structs of arguments of launches that became one: blocks along z tell which is theirs. They lie beside
/// each other in a grid as large as the largest needs.
constexpr uint32_t MOST_BESIDE = 3;
template <class Args>
struct Beside {
    Args each[MOST_BESIDE];
};

#define DEVICE static __device__ __forceinline__

/// Threads of a warp, lanes of a reduction, and elements of the smallest quantized block.
constexpr uint32_t LANES = 32;

constexpr uint32_t ALL_LANES = 0xffffffffu;

/// Bytes that a block can share on every device there is support for: two such blocks run side by side
/// on the larger ones.
constexpr uint32_t MOST_SHARED = 99 << 10;

/// A row of an index table that means none.
constexpr uint32_t NONE = 0xffffffffu;

/// What the threads of a block share, in a kernel that was begun with so much memory.
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

/// Keeps what a loop uses again and again: the compiler would rather make it anew each time.
DEVICE uint32_t kept(uint32_t value) {
#ifdef __CUDACC__
    asm volatile("" : "+r"(value));
#endif
    return value;
}

/// The same of a place in the device's memory.
template <class V>
DEVICE V *kept(V *place) {
#ifdef __CUDACC__
    asm volatile("" : "+l"(place));
#endif
    return place;
}

DEVICE uint32_t lane() { return threadIdx.x % LANES; }

DEVICE uint32_t warp() { return threadIdx.x / LANES; }

/// The thread's place among all threads along x.
DEVICE uint64_t place() { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }

DEVICE uint32_t min_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

DEVICE uint32_t max_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

/// The sum of all lanes, in all of them: lane `l` adds lane `l + 16`, then `l + 8`, `l + 4`, ...
DEVICE float sum_lanes(float value) {
#pragma unroll
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, half);
    }
    return value;
}

/// The largest of all lanes, in all of them.
DEVICE float max_lanes(float value) {
#pragma unroll
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, half));
    }
    return value;
}

/// A half-precision number.
DEVICE float half_to_float(uint16_t bits) {
#ifdef __CUDACC__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    return emulated::half_to_float(bits);
#endif
}

/// A bfloat16 number.
DEVICE float bfloat_to_float(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }

/// Bytes that memory is read by.
constexpr uint32_t LINE = 128;

/// Asks for a line of memory that is read soon.
DEVICE void prefetch(const uint8_t *bytes) {
#ifdef __CUDACC__
    asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(bytes)));
#endif
}

/// Sixteen bits from any even address.
DEVICE uint16_t load_u16(const uint8_t *bytes) { return *reinterpret_cast<const uint16_t *>(bytes); }

/// Sixteen bytes from an address that is a multiple of that, as words.
DEVICE void load_quad(const uint8_t *bytes, uint32_t (&words)[4]) {
    const uint4 quad = *reinterpret_cast<const uint4 *>(bytes);
    words[0] = quad.x, words[1] = quad.y, words[2] = quad.z, words[3] = quad.w;
}

/// A word from an address that is a multiple of ALIGN. Where that is 1 it reads the whole words with the
/// first and the last byte: allocations are whole words.
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
