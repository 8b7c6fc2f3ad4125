// Decodes rows of a weight of type WEIGHT. Compiled for each type.
#include "unpack.cuh"

constexpr uint32_t THREADS = 128;

struct Embed {
    const uint8_t *table;
    /// Rows to decode; null for the first rows.
    const uint32_t *tokens;
    /// Indices into `tokens`; null for 0, 1, 2, ...
    const uint32_t *places;
    float *out;
    uint32_t row_bytes;
    uint32_t n_cols;
};

/// One block per row. Each thread decodes tiles of quantized types.
template <class T>
DEVICE void decode_row(const uint8_t *row, float *out, uint32_t n_cols) {
    if constexpr (T::IS_QUANTIZED) {
        for (uint32_t index = threadIdx.x; index < n_cols / LANES; index += THREADS) {
            const uint8_t *block = T::block(row, index);
            const uint32_t in_block = index % T::TILES;
            typename T::Scales scales;
            T::scales(block, in_block, scales);
#pragma unroll
            for (uint32_t t = 0; t < 4; t++) {
                uint32_t quants[2];
                T::quants(block, TileIndex{in_block / 4 * 4, in_block % 4}, t, quants);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const int half = i / 4, part = T::SCALES == 1 ? 0 : half;
                    const int quant = (int)(int8_t)byte_of(quants[half], i % 4) - T::OFFSET;
                    float value = scales.scale[part] * (float)quant;
                    if (T::HAS_MINS) value += scales.minus_min[part];
                    out[index * LANES + 16 * half + 4 * t + i % 4] = value;
                }
            }
        }
    } else {
        for (uint32_t i = threadIdx.x; i < n_cols; i += THREADS) out[i] = T::at(row, i);
    }
}

KERNEL(embed, THREADS, Embed) {
    const uint32_t place = args.places == nullptr ? blockIdx.x : args.places[blockIdx.x];
    const uint64_t row = args.tokens == nullptr ? place : args.tokens[place];
    float *out = args.out + (uint64_t)blockIdx.x * args.n_cols;
    decode_row<WEIGHT>(args.table + row * args.row_bytes, out, args.n_cols);
}
