// Work on each element of matrices [rows, columns], and sums over their columns in an order that the shape alone says.
//
// A block has 8 warps and a tile: 32 * V columns, V neighbours to a lane, by a range of rows, one a warp in turn.
// V is what 16 bytes hold, or 1 where an address or the number of columns is no multiple of that. Each thread has the
// rows of `tile_depth` turns under way at once, which is what keeps the memory busy.
// Sums over rows: each thread over its own, the block's warps in their order, and blocks by a second kernel in theirs.
#pragma once

#include "device.cuh"

constexpr int tile_warps = 8;
constexpr int tile_threads = tile_warps * warp_size;
constexpr int tile_depth = 4;

template <typename T> constexpr int widest = 16 / int(sizeof(T));

struct Tile {
    int64_t first_row, end_row;  // of this warp: every `tile_warps`-th
    int64_t column;              // of this lane: the first of its V
    bool is_inside;
};

template <int V> __device__ __forceinline__ Tile tile_of_thread(int64_t rows, int64_t columns, int64_t rows_per_block) {
    Tile tile;
    const int64_t first_row = int64_t(blockIdx.y) * rows_per_block;
    tile.first_row = first_row + warp_index();
    tile.end_row = first_row + rows_per_block < rows ? first_row + rows_per_block : rows;
    tile.column = (int64_t(blockIdx.x) * warp_size + lane_index()) * V;
    tile.is_inside = tile.column < columns;
    return tile;
}

// use(row, x) for each row of the thread's, with x [inputs][V] of what `in` holds there.
template <typename T, int V, int inputs, typename Use>
__device__ __forceinline__ void for_tile(const Tile& tile, int64_t columns, const T* const (&in)[inputs], Use use) {
    if (!tile.is_inside) return;
    for (int64_t first = tile.first_row; first < tile.end_row; first += tile_depth * tile_warps) {
        Vec<T, V> read[tile_depth][inputs];
#pragma unroll
        for (int turn = 0; turn < tile_depth; ++turn) {
            const int64_t row = first + turn * tile_warps;
            if (row >= tile.end_row) break;
#pragma unroll
            for (int one = 0; one < inputs; ++one) {
                read[turn][one] = Vec<T, V>::load(in[one] + row * columns + tile.column);
            }
        }
#pragma unroll
        for (int turn = 0; turn < tile_depth; ++turn) {
            const int64_t row = first + turn * tile_warps;
            if (row >= tile.end_row) break;
            float x[inputs][V];
#pragma unroll
            for (int one = 0; one < inputs; ++one) {
#pragma unroll
                for (int at = 0; at < V; ++at) x[one][at] = to_float(read[turn][one][at]);
            }
            use(row, x);
        }
    }
}

// compute(row, x, y) as `for_tile` has it; y [outputs][V] is what goes to `out`.
template <typename T, int V, int inputs, int outputs, typename Compute>
__device__ __forceinline__ void over_tile(const Tile& tile, int64_t columns, const T* const (&in)[inputs],
                                          T* const (&out)[outputs], Compute compute) {
    for_tile<T, V>(tile, columns, in, [&](int64_t row, const float (&x)[inputs][V]) {
        float y[outputs][V];
        compute(row, x, y);
#pragma unroll
        for (int one = 0; one < outputs; ++one) {
            Vec<T, V> written;
#pragma unroll
            for (int at = 0; at < V; ++at) written[at] = from_float<T>(y[one][at]);
            written.store(out[one] + row * columns + tile.column);
        }
    });
}

// What V neighbours of a row of `columns` hold at the lane's columns, 0 where there is no such row.
template <typename T, int V>
__device__ __forceinline__ void load_columns(const Tile& tile, const T* row, float (&values)[V]) {
#pragma unroll
    for (int at = 0; at < V; ++at) values[at] = row && tile.is_inside ? to_float(row[tile.column + at]) : 0.0f;
}

// The block's sums of each column, from each thread's own: row `blockIdx.y` of partials [gridDim.y, columns].
template <int V>
__device__ __forceinline__ void store_column_sums(const float (&sums)[V], float* partials, int64_t columns) {
    SHARED(float, of_warps, (tile_threads * V));
#pragma unroll
    for (int at = 0; at < V; ++at) of_warps[int(threadIdx.x) * V + at] = sums[at];
    __syncthreads();
    for (int at = int(threadIdx.x); at < warp_size * V; at += tile_threads) {
        float total = 0.0f;
#pragma unroll
        for (int warp = 0; warp < tile_warps; ++warp) total += of_warps[warp * warp_size * V + at];
        const int64_t column = int64_t(blockIdx.x) * warp_size * V + at;
        if (column < columns) partials[int64_t(blockIdx.y) * columns + column] = total;
    }
}

// out[column] <- the sum of partials [parts, columns]; a block for 32 columns, whose warps take parts in turn.
template <typename T>
__device__ __forceinline__ void add_up_columns(T* out, const float* partials, int64_t parts, int64_t columns) {
    SHARED(float, of_warps, tile_threads);
    const int64_t column = int64_t(blockIdx.x) * warp_size + lane_index();
    float total = 0.0f;
    if (column < columns) {
#pragma unroll 4
        for (int64_t part = warp_index(); part < parts; part += tile_warps) total += partials[part * columns + column];
    }
    of_warps[threadIdx.x] = total;
    __syncthreads();
    if (warp_index() != 0 || column >= columns) return;
    total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < tile_warps; ++warp) total += of_warps[warp * warp_size + lane_index()];
    out[column] = from_float<T>(total);
}
