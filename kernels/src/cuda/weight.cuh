// Every element type of a weight: those in codes, and plain numbers.
#pragma once
#include "coded.cuh"

struct F32 {
    static constexpr uint32_t BYTES = 4;
    static __device__ __forceinline__ float at(const uint8_t *row, uint64_t i) {
        return reinterpret_cast<const float *>(row)[i];
    }
};

struct F16 {
    static constexpr uint32_t BYTES = 2;
    static __device__ __forceinline__ float at(const uint8_t *row, uint64_t i) {
        return half_to_float(load_u16(row + 2 * i));
    }
};

struct BF16 {
    static constexpr uint32_t BYTES = 2;
    static __device__ __forceinline__ float at(const uint8_t *row, uint64_t i) {
        return bfloat_to_float(load_u16(row + 2 * i));
    }
};

/// Whether elements are codes with scales.
template <class T>
struct IsCoded {
    static constexpr bool VALUE = true;
};
template <>
struct IsCoded<F32> {
    static constexpr bool VALUE = false;
};
template <>
struct IsCoded<F16> {
    static constexpr bool VALUE = false;
};
template <>
struct IsCoded<BF16> {
    static constexpr bool VALUE = false;
};
