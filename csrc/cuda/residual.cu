// residual + dropout(x + bias) with the mask drawn where it is needed, and its gradients.
//
// Bytes: e per element of the tensors: x and the residual are read, the sum written: 3 e; the gradient's pass reads one
// and writes one: 2 e, and with a bias partial sums of at most e / 8. No mask is read, written or kept.
// Floor: these bytes at the rate of a copy. 64 random bits serve four elements and are two 64-bit products.
//
// The mask is trainer/kernels/residual.py's: number `element / 4` of the SplitMix64 sequence that the sample's
// seed begins, 16 bits of it for each element, counted over the whole sample of positions x units, whatever slice of it
// is here.
#include "tiles.cuh"

__device__ __forceinline__ uint64_t random_bits(uint64_t seed, uint64_t number) {
    uint64_t bits = seed + (number + 1) * 0x9E3779B97F4A7C15ull;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

// What is dropped, of samples that have `positions` rows here of which the first is the whole sample's number
// `first_position`.
struct Dropout {
    const int64_t* seeds;  // of each sample; null: nothing is dropped
    int32_t lowest_kept;
    float scale;
    uint32_t positions;
    int64_t first_position;

    // What V neighbours from `column` of `row` on are multiplied by.
    template <int V>
    __device__ __forceinline__ void factors(int64_t row, int64_t column, int64_t columns, float (&factor)[V]) const {
        if (!seeds) {
#pragma unroll
            for (int at = 0; at < V; ++at) factor[at] = 1.0f;
            return;
        }
        const uint32_t sample = uint32_t(row) / positions;
        const uint64_t seed = uint64_t(seeds[sample]);
        const int64_t position = first_position + (uint32_t(row) - sample * positions);
        const uint64_t element = uint64_t(position * columns + column);
        uint64_t bits = random_bits(seed, element / 4) >> (16 * (element % 4));
#pragma unroll
        for (int at = 0; at < V; ++at) {
            if (at > 0 && at % 4 == 0) bits = random_bits(seed, element / 4 + uint64_t(at / 4));
            factor[at] = int16_t(bits & 0xffff) >= lowest_kept ? scale : 0.0f;
            bits >>= 16;
        }
    }
};

template <typename T, int V>
__device__ __forceinline__ void residual_tile(T* y, const T* x, const T* bias, const T* residual, int64_t rows,
                                              int64_t columns, int64_t rows_per_block, Dropout dropout) {
    const Tile tile = tile_of_thread<V>(rows, columns, rows_per_block);
    float added[V];
    load_columns<T, V>(tile, bias, added);
    T* const out[1] = {y};
    if (!residual) {
        const T* const in[1] = {x};
        over_tile<T, V>(tile, columns, in, out, [&](int64_t row, const float (&read)[1][V], float (&written)[1][V]) {
            float factor[V];
            dropout.factors<V>(row, tile.column, columns, factor);
#pragma unroll
            for (int at = 0; at < V; ++at) written[0][at] = (read[0][at] + added[at]) * factor[at];
        });
        return;
    }
    const T* const in[2] = {x, residual};
    over_tile<T, V>(tile, columns, in, out, [&](int64_t row, const float (&read)[2][V], float (&written)[1][V]) {
        float factor[V];
        dropout.factors<V>(row, tile.column, columns, factor);
#pragma unroll
        for (int at = 0; at < V; ++at) written[0][at] = read[1][at] + (read[0][at] + added[at]) * factor[at];
    });
}

template <typename T, int V>
__device__ __forceinline__ void residual_backward_tile(T* of_x, float* partials, const T* gradient, int64_t rows,
                                                       int64_t columns, int64_t rows_per_block, Dropout dropout) {
    const Tile tile = tile_of_thread<V>(rows, columns, rows_per_block);
    float sums[V] = {};
    const T* const in[1] = {gradient};
    if (of_x) {
        T* const out[1] = {of_x};
        over_tile<T, V>(tile, columns, in, out, [&](int64_t row, const float (&read)[1][V], float (&written)[1][V]) {
            float factor[V];
            dropout.factors<V>(row, tile.column, columns, factor);
#pragma unroll
            for (int at = 0; at < V; ++at) {
                written[0][at] = read[0][at] * factor[at];
                sums[at] += written[0][at];
            }
        });
    } else {  // nothing is dropped: x's gradient is the sum's, and only the bias has one of its own
        for_tile<T, V>(tile, columns, in, [&](int64_t, const float (&read)[1][V]) {
#pragma unroll
            for (int at = 0; at < V; ++at) sums[at] += read[0][at];
        });
    }
    if (partials) store_column_sums<V>(sums, partials, columns);
}

template <typename T>
__device__ __forceinline__ void residual(T* y, const T* x, const T* bias, const T* residual, const int64_t* seeds,
                                         int64_t rows, int64_t columns, int64_t rows_per_block, int64_t positions,
                                         int64_t first_position, int32_t lowest_kept, float scale, int32_t width) {
    const Dropout dropout{seeds, lowest_kept, scale, uint32_t(positions), first_position};
    constexpr int V = widest<T>;
    if (width == V) return residual_tile<T, V>(y, x, bias, residual, rows, columns, rows_per_block, dropout);
    residual_tile<T, 1>(y, x, bias, residual, rows, columns, rows_per_block, dropout);
}

template <typename T>
__device__ __forceinline__ void residual_backward(T* of_x, float* partials, const T* gradient, const int64_t* seeds,
                                                  int64_t rows, int64_t columns, int64_t rows_per_block,
                                                  int64_t positions, int64_t first_position, int32_t lowest_kept,
                                                  float scale, int32_t width) {
    const Dropout dropout{seeds, lowest_kept, scale, uint32_t(positions), first_position};
    constexpr int V = widest<T>;
    if (width == V) {
        return residual_backward_tile<T, V>(of_x, partials, gradient, rows, columns, rows_per_block, dropout);
    }
    residual_backward_tile<T, 1>(of_x, partials, gradient, rows, columns, rows_per_block, dropout);
}

extern "C" __global__ void __launch_bounds__(tile_threads) residual_f32(
    float* y, const float* x, const float* bias, const float* beside, const int64_t* seeds, int64_t rows,
    int64_t columns, int64_t rows_per_block, int64_t positions, int64_t first_position, int32_t lowest_kept,
    float scale, int32_t width) {
    residual<float>(y, x, bias, beside, seeds, rows, columns, rows_per_block, positions, first_position, lowest_kept,
                    scale, width);
}
EXPORT(residual_f32)

extern "C" __global__ void __launch_bounds__(tile_threads) residual_f16(
    Half* y, const Half* x, const Half* bias, const Half* beside, const int64_t* seeds, int64_t rows, int64_t columns,
    int64_t rows_per_block, int64_t positions, int64_t first_position, int32_t lowest_kept, float scale,
    int32_t width) {
    residual<Half>(y, x, bias, beside, seeds, rows, columns, rows_per_block, positions, first_position, lowest_kept,
                   scale, width);
}
EXPORT(residual_f16)

extern "C" __global__ void __launch_bounds__(tile_threads) residual_bf16(
    BFloat16* y, const BFloat16* x, const BFloat16* bias, const BFloat16* beside, const int64_t* seeds, int64_t rows,
    int64_t columns, int64_t rows_per_block, int64_t positions, int64_t first_position, int32_t lowest_kept,
    float scale, int32_t width) {
    residual<BFloat16>(y, x, bias, beside, seeds, rows, columns, rows_per_block, positions, first_position, lowest_kept,
                       scale, width);
}
EXPORT(residual_bf16)

extern "C" __global__ void __launch_bounds__(tile_threads) residual_backward_f32(
    float* of_x, float* partials, const float* gradient, const int64_t* seeds, int64_t rows, int64_t columns,
    int64_t rows_per_block, int64_t positions, int64_t first_position, int32_t lowest_kept, float scale,
    int32_t width) {
    residual_backward<float>(of_x, partials, gradient, seeds, rows, columns, rows_per_block, positions, first_position,
                             lowest_kept, scale, width);
}
EXPORT(residual_backward_f32)

extern "C" __global__ void __launch_bounds__(tile_threads) residual_backward_f16(
    Half* of_x, float* partials, const Half* gradient, const int64_t* seeds, int64_t rows, int64_t columns,
    int64_t rows_per_block, int64_t positions, int64_t first_position, int32_t lowest_kept, float scale,
    int32_t width) {
    residual_backward<Half>(of_x, partials, gradient, seeds, rows, columns, rows_per_block, positions, first_position,
                            lowest_kept, scale, width);
}
EXPORT(residual_backward_f16)

extern "C" __global__ void __launch_bounds__(tile_threads) residual_backward_bf16(
    BFloat16* of_x, float* partials, const BFloat16* gradient, const int64_t* seeds, int64_t rows, int64_t columns,
    int64_t rows_per_block, int64_t positions, int64_t first_position, int32_t lowest_kept, float scale,
    int32_t width) {
    residual_backward<BFloat16>(of_x, partials, gradient, seeds, rows, columns, rows_per_block, positions,
                                first_position, lowest_kept, scale, width);
}
EXPORT(residual_backward_bf16)

extern "C" __global__ void __launch_bounds__(tile_threads) residual_bias_gradient_f32(
    float* out, const float* partials, int64_t parts, int64_t columns) {
    add_up_columns<float>(out, partials, parts, columns);
}
EXPORT(residual_bias_gradient_f32)

extern "C" __global__ void __launch_bounds__(tile_threads) residual_bias_gradient_f16(
    Half* out, const float* partials, int64_t parts, int64_t columns) {
    add_up_columns<Half>(out, partials, parts, columns);
}
EXPORT(residual_bias_gradient_f16)

extern "C" __global__ void __launch_bounds__(tile_threads) residual_bias_gradient_bf16(
    BFloat16* out, const float* partials, int64_t parts, int64_t columns) {
    add_up_columns<BFloat16>(out, partials, parts, columns);
}
EXPORT(residual_bias_gradient_bf16)
