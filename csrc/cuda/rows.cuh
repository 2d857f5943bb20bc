// Rows of a matrix, each by a team: a warp, or a block. What operations over rows share.
//
// A thread of a team of t reads vectors t apart, 16 bytes each, at most `values_of_thread` values at once (a tile of
// the row). Where a vector reaches over an end of the row, or is not aligned, its elements are moved one by one.
#pragma once

#include "device.cuh"

// Elements in 16 bytes, and how many of those a thread holds at once.
template <typename T> constexpr int width = 16 / int(sizeof(T));
constexpr int values_of_thread = 32;
template <typename T> constexpr int vectors_of_thread = values_of_thread / width<T>;

template <typename T> using Part = Vec<T, width<T>>;

// Elements by which an address lies behind a multiple of 16 bytes.
template <typename T> __device__ __forceinline__ int elements_off(const T* address) {
    return int(reinterpret_cast<unsigned long long>(address) % 16 / sizeof(T));
}

// Elements first, first + 1 ... of a row, zero where they are not in [0, end). `aligned`: whether row + first is.
template <typename T>
__device__ __forceinline__ Part<T> read_part(const T* row, bool aligned, int first, int end) {
    if (aligned && first >= 0 && first + width<T> <= end) return Part<T>::load(row + first);
    Part<T> part;
#pragma unroll
    for (int at = 0; at < width<T>; ++at) {
        const int element = first + at;
        part[at] = element >= 0 && element < end ? row[element] : from_float<T>(0.0f);
    }
    return part;
}

// Those of them that are in [0, end).
template <typename T>
__device__ __forceinline__ void write_part(const Part<T>& part, T* row, bool aligned, int first, int end) {
    if (aligned && first >= 0 && first + width<T> <= end) {
        part.store(row + first);
        return;
    }
#pragma unroll
    for (int at = 0; at < width<T>; ++at) {
        const int element = first + at;
        if (element >= 0 && element < end) row[element] = part[at];
    }
}

// A team has a place in the grid, its threads a place in it, and its threads' values a sum and a maximum.
struct WarpTeam {
    static __device__ __forceinline__ int teams_in_block() { return warps_in_block(); }
    static __device__ __forceinline__ int index_in_block() { return warp_index(); }
    static __device__ __forceinline__ int threads() { return warp_size; }
    static __device__ __forceinline__ int thread() { return lane_index(); }
    static __device__ __forceinline__ float max(float value) { return warp_max(value); }
    static __device__ __forceinline__ float sum(float value) { return warp_sum(value); }
    static __device__ __forceinline__ void sums(float (&values)[2]) {
        values[0] = warp_sum(values[0]);
        values[1] = warp_sum(values[1]);
    }
};
struct BlockTeam {
    static __device__ __forceinline__ int teams_in_block() { return 1; }
    static __device__ __forceinline__ int index_in_block() { return 0; }
    static __device__ __forceinline__ int threads() { return int(blockDim.x); }
    static __device__ __forceinline__ int thread() { return int(threadIdx.x); }
    static __device__ __forceinline__ float max(float value) { return block_max(value); }
    static __device__ __forceinline__ float sum(float value) { return block_sum(value); }
    static __device__ __forceinline__ void sums(float (&values)[2]) { block_sums(values); }
};

// Of all teams of the grid, which this is.
template <typename Team> __device__ __forceinline__ int64_t team_index() {
    return int64_t(blockIdx.x) * Team::teams_in_block() + Team::index_in_block();
}
