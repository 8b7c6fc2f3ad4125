// What 32 activations are to products with quantized weights, besides their codes.
#pragma once
#include "common.cuh"

struct __align__(16) Scale {
    /// An element is `scale * code`; NaN where an element is no finite number.
    float scale;
    /// What the first and the second half of the codes add up to.
    int32_t sums[2];
    uint32_t unused;
};
