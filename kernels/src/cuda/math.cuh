// Functions of one number, with the formulas and the bits of `kernels/src/cpu/math.rs`.
#pragma once
#include "common.cuh"

/// `2^n`.
DEVICE float power_of_two(int32_t n) { return __uint_as_float((uint32_t)(n + 127) << 23); }

/// `e^x` within two units in the last place.
DEVICE float exponential(float x) {
    const float round = 12582912.0f;
    const float shifted = fmaf(x, 1.44269504088896340736f, round);
    const float n = shifted - round;
    const float r = fmaf(n, 2.1219444e-4f, fmaf(n, -0.6933594f, x));
    float p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    const int32_t power = (int32_t)(__float_as_uint(shifted) - __float_as_uint(round));
    const int32_t half = power >> 1;
    float y = p * power_of_two(half) * power_of_two(power - half);
    y = x < -87.33654f ? 0.0f : y;
    y = x > 88.72283f ? __uint_as_float(0x7f800000u) : y;
    return x != x ? x : y;
}

/// `1 / (1 + e^-x)`.
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

/// `x / (1 + e^-x)`.
DEVICE float silu(float x) { return x / (1.0f + exponential(-x)); }

/// `(e^x - e^-x) / (e^x + e^-x)`.
DEVICE float hyperbolic_tangent(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

/// `x` times the approximation of the normal distribution function by a hyperbolic tangent.
DEVICE float gelu(float x) {
    return x * sigmoid(1.595769f * (x + 0.044715f * x * x * x));
}

/// `ln(1 + x)` for `x >= 0`.
DEVICE float logarithm_of_one_plus(float x) {
    // 1 + x = 2^n m with m from 1/sqrt(2); n is 0 for small x, so that no bit of x is lost.
    const double sum = 1.0 + (double)x;
    const int64_t bits = __double_as_longlong(sum);
    const int64_t n = (bits - 0x3fe6a09e667f3bcdll) >> 52;
    const double m = __longlong_as_double(bits - (n << 52));
    const double f = n == 0 ? (double)x : m - 1.0;
    const double s = f / (2.0 + f);
    const double z = s * s;
    double p = 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    p = p * z + 1.0;
    return (float)(2.0 * s * p + (double)n * 0.69314718055994530942);
}

/// `ln(1 + e^x)`; `x` above 20, where the difference is less than half a unit in the last place.
DEVICE float softplus(float x) {
    return x > 20.0f ? x : logarithm_of_one_plus(exponential(x));
}

/// Sine and cosine of an angle in radians.
DEVICE void sine_cosine(float angle, float &sine, float &cosine) {
    // Adding 1.5 * 2^52 rounds to an integer: the number of quarter turns, in the low bits.
    const double shifted = (double)angle * 0.6366197723675814 + 6755399441055744.0;
    const double n = shifted - 6755399441055744.0;
    // A quarter turn in three parts; the first two are so short that n times each of them is exact.
    const double r = (((double)angle - n * 1.570796325802803) - n * 9.920935791635221e-10) -
                     n * 5.170182981794105e-19;
    const double z = r * r;
    double s = -1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = r + r * z * s;
    double c = 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z - 0.5;
    c = 1.0 + z * c;
    const uint32_t quarter = (uint32_t)__double_as_longlong(shifted) & 3;
    const double sine_of = quarter % 2 == 0 ? s : c;
    const double cosine_of = quarter % 2 == 0 ? c : s;
    sine = (float)(quarter < 2 ? sine_of : -sine_of);
    cosine = (float)(quarter == 0 || quarter == 3 ? cosine_of : -cosine_of);
}
