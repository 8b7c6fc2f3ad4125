// Compression of positions, in the CPU's order (see `kernels/src/ops/compression/cpu.rs`).
#include "math.cuh"

/// A source that is a slot of the kept rows, not a row of the batch.
constexpr uint32_t IS_KEPT = 0x80000000u;

struct Compress {
    const float *kv;
    const float *gate;
    /// Values, then scores.
    const float *kept;
    const float *ape;
    /// (groups, n_source), NONE for a missing row.
    const uint32_t *sources;
    float *out;
    uint64_t len;
    uint32_t ratio;
    uint32_t dim;
    uint32_t width;
    uint32_t n_source;
};

/// One thread per element of a compressed row.
KERNEL(compress, 256, Compress) {
    const uint64_t i = place();
    if (i >= args.len) return;
    const uint32_t column = (uint32_t)(i % args.dim);
    const uint32_t *sources = args.sources + i / args.dim * args.n_source;
    const auto score = [&](uint32_t j, const float *&value) {
        const uint32_t source = sources[j];
        // The second half of the sources are those of the group itself.
        const uint32_t at = j / args.ratio * args.dim + column;
        const uint64_t slot = source & ~IS_KEPT;
        const bool is_kept = (source & IS_KEPT) != 0;
        value = is_kept ? args.kept + 2 * slot * args.width + at : args.kv + slot * args.width + at;
        const float gate = is_kept ? value[args.width] : args.gate[slot * args.width + at];
        return gate + args.ape[(uint64_t)(j % args.ratio) * args.width + at];
    };
    const float *value = nullptr;
    float most = -__uint_as_float(0x7f800000u);
    for (uint32_t j = 0; j < args.n_source; j++) {
        if (sources[j] == NONE) continue;
        const float x = score(j, value);
        most = x > most ? x : most;
    }
    float sum = 0.0f, total = 0.0f;
    for (uint32_t j = 0; j < args.n_source; j++) {
        if (sources[j] == NONE) continue;
        const float weight = exponential(score(j, value) - most);
        sum += weight;
        total += weight * *value;
    }
    args.out[i] = total / sum;
}

struct KeepRows {
    const float *kv;
    const float *gate;
    float *kept;
    /// A row and its slot.
    const uint32_t *pairs;
    uint64_t len;
    uint64_t width;
};

/// One thread per element of a row of the batch.
KERNEL(keep_rows, 256, KeepRows) {
    const uint64_t i = place();
    if (i >= args.len) return;
    const uint64_t pair = i / args.width, column = i % args.width;
    const uint64_t from = args.pairs[2 * pair] * args.width + column;
    float *to = args.kept + 2 * args.pairs[2 * pair + 1] * args.width + column;
    to[0] = args.kv[from];
    to[args.width] = args.gate[from];
}
