// Element-wise operations.
#include "activation.cuh"
#include "math.cuh"

struct Binary {
    float *x;
    const float *y;
    QuantizedInput quantized;
    uint64_t len;
    float number;
    uint32_t unused;
};

/// Defines a kernel that sets each element to `f(x, y)`.
template <class F>
DEVICE void replace(const Binary &args, F f) {
    const uint64_t i = place();
    if (i >= args.len) return;
    const float value = f(args.x[i], args.y == nullptr ? 0.0f : args.y[i]);
    args.x[i] = value;
    store_quant(args.quantized, i, value);
}

KERNEL(add, 256, Binary) {
    replace(args, [](float x, float y) { return x + y; });
}

KERNEL(silu_mul, 256, Binary) {
    replace(args, [](float x, float y) { return silu(x) * y; });
}

KERNEL(gelu_mul, 256, Binary) {
    replace(args, [](float x, float y) { return gelu(x) * y; });
}

KERNEL(clamped_silu_mul, 256, Binary) {
    replace(args, [](float x, float y) {
        const float clamp = 7.0f;
        x = fminf(x, clamp);
        y = y < -clamp ? -clamp : y;
        y = y > clamp ? clamp : y;
        return x * sigmoid(1.702f * x) * (y + 1.0f);
    });
}

KERNEL(limited_silu_mul, 256, Binary) {
    const float limit = args.number;
    replace(args, [=](float x, float y) { return silu(fminf(x, limit)) * fminf(fmaxf(y, -limit), limit); });
}

KERNEL(sigmoid_mul, 256, Binary) {
    replace(args, [](float x, float y) { return x * sigmoid(y); });
}

KERNEL(relu_squared, 256, Binary) {
    replace(args, [](float x, float) {
        const float positive = x < 0.0f ? 0.0f : x;
        return positive * positive;
    });
}

KERNEL(scale, 256, Binary) {
    const float number = args.number;
    replace(args, [=](float x, float) { return x * number; });
}

KERNEL(softcap, 256, Binary) {
    const float number = args.number;
    replace(args, [=](float x, float) { return number * hyperbolic_tangent(x / number); });
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
