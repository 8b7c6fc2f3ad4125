// Operations in which elements of a row do not meet.
#include "math.cuh"

struct Binary {
    float *x;
    const float *y;
    uint64_t len;
    float number;
};

KERNEL(add, 256, Binary) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] += args.y[i];
}

KERNEL(silu_mul, 256, Binary) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] = silu(args.x[i]) * args.y[i];
}

KERNEL(gelu_mul, 256, Binary) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] = gelu(args.x[i]) * args.y[i];
}

KERNEL(clamped_silu_mul, 256, Binary) {
    const uint64_t i = place();
    if (i >= args.len) return;
    const float clamp = 7.0f;
    const float x = fminf(args.x[i], clamp);
    float y = args.y[i];
    y = y < -clamp ? -clamp : y;
    y = y > clamp ? clamp : y;
    args.x[i] = x * sigmoid(1.702f * x) * (y + 1.0f);
}

KERNEL(scale, 256, Binary) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] *= args.number;
}

KERNEL(softcap, 256, Binary) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] = args.number * hyperbolic_tangent(args.x[i] / args.number);
}

KERNEL(sigmoid_mul, 256, Binary) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] *= sigmoid(args.y[i]);
}

struct Rows {
    float *x;
    const float *y;
    uint64_t len;
    uint64_t dim;
};

/// Adds `y`, (dim), to each row.
KERNEL(add_bias, 256, Rows) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] += args.y[i % args.dim];
}

/// Multiplies each row by the sigmoid of its element of `y`, (rows).
KERNEL(sigmoid_mul_rows, 256, Rows) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] *= sigmoid(args.y[i / args.dim]);
}
