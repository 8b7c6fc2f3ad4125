// Quantizes activations that no other kernel has quantized.
#include "activation.cuh"

struct Quantize {
    const float *x;
    QuantizedInput quantized;
    uint64_t len;
};

KERNEL(quantize, 256, Quantize) {
    const uint64_t i = place();
    if (i < args.len) store_quant(args.quantized, i, args.x[i]);
}
