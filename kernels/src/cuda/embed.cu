// Rows of a weight of one type, WEIGHT, as numbers. Compiled for each type.
#include "weight.cuh"

constexpr uint32_t THREADS = 128;

struct Embed {
    const uint8_t *table;
    /// Which rows; null for the first.
    const uint32_t *tokens;
    /// Where among them; null for the first.
    const uint32_t *places;
    float *out;
    uint32_t row_bytes;
    uint32_t n_cols;
};

/// One block a row; of codes each thread decodes a tile.
template <class T>
DEVICE void decode_row(const uint8_t *row, float *out, uint32_t n_cols) {
    if constexpr (IsCoded<T>::VALUE) {
        for (uint32_t index = threadIdx.x; index < n_cols / LANES; index += THREADS) {
            typename T::Tile tile;
            const uint64_t block = (uint64_t)(index / T::TILES) * T::BYTES;
            T::unpack(row + block, index % T::TILES, tile);
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const int part = T::SCALES == 1 ? 0 : i / 16;
                const int code = (int)(int8_t)byte_of(tile.codes[i / 4], i % 4) - T::OFFSET;
                float value = tile.scale[part] * (float)code;
                if (T::HAS_MINS) value += tile.minus_min[part];
                out[index * LANES + i] = value;
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
