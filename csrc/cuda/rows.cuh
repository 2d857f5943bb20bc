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

// Blocks of the largest size that a multiprocessor must have registers for at once. In fp32 any more would spill: there
// a thread takes twice the registers for as many values.
template <typename T> constexpr int at_once(int blocks) { return sizeof(T) == 2 ? blocks : 1; }

// 16 bytes of a row as they lie in memory. They are taken apart only where they are computed with: a thread that took
// them apart as it loads them would wait for each load before the next, whatever it does with them.
template <typename T> struct Part {
    Vec<uint32_t, 4> words;

    static __device__ __forceinline__ Part load(const T* from) {
        return {Vec<uint32_t, 4>::load(reinterpret_cast<const uint32_t*>(from))};
    }
    __device__ __forceinline__ void store(T* to) const { words.store(reinterpret_cast<uint32_t*>(to)); }

    static __device__ __forceinline__ Part zeros() { return {{{0, 0, 0, 0}}}; }

    static __device__ __forceinline__ Part of(const float (&values)[width<T>]) {
        Part part;
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int at = 0; at < 4; ++at) part.words[at] = __float_as_uint(values[at]);
        } else {
#pragma unroll
            for (int at = 0; at < 4; ++at) part.words[at] = two_of<T>(values[2 * at], values[2 * at + 1]);
        }
        return part;
    }

    __device__ __forceinline__ float operator[](int at) const {
        if constexpr (sizeof(T) == 4) {
            return __uint_as_float(words[at]);
        } else {
            return to_float(T{uint16_t(words[at / 2] >> (at % 2 * 16))});
        }
    }

    // For the few at the ends of rows.
    __device__ __forceinline__ void set(int at, T value) {
        if constexpr (sizeof(T) == 4) {
            words[at] = __float_as_uint(value);
        } else {
            const int shift = at % 2 * 16;
            words[at / 2] = (words[at / 2] & ~(0xffffu << shift)) | uint32_t(value.bits) << shift;
        }
    }
    // Zeros from element `count` on.
    __device__ __forceinline__ void keep(int count) {
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            if (at >= count) set(at, from_float<T>(0.0f));
        }
    }
};

// Elements by which an address lies behind a multiple of 16 bytes.
template <typename T> __device__ __forceinline__ int elements_off(const T* address) {
    return int(reinterpret_cast<unsigned long long>(address) % 16 / sizeof(T));
}

// Elements first, first + 1 ... of a row, zero where they are not in [0, end). `aligned`: whether row + first is.
// `whole`: it is, and vectors lie in the row or outside of it; then `first` decides for all of one.
template <typename T, bool whole = false>
__device__ __forceinline__ Part<T> read_part(const T* row, bool aligned, int first, int end) {
    if constexpr (whole) {
        return first < end ? Part<T>::load(row + first) : Part<T>::zeros();
    } else {
        if (aligned && first >= 0 && first + width<T> <= end) return Part<T>::load(row + first);
        Part<T> part = Part<T>::zeros();
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            const int element = first + at;
            if (element >= 0 && element < end) part.set(at, row[element]);
        }
        return part;
    }
}

// Those of them that are in [0, end).
template <typename T, bool whole = false>
__device__ __forceinline__ void write_part(const float (&values)[width<T>], T* row, bool aligned, int first, int end) {
    if (whole || (aligned && first >= 0 && first + width<T> <= end)) {
        Part<T>::of(values).store(row + first);
    } else {
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            const int element = first + at;
            if (element >= 0 && element < end) row[element] = from_float<T>(values[at]);
        }
    }
}

// A team has a place in the grid, its threads a place in it, and its threads' values a sum and a maximum.
struct WarpTeam {
    static __device__ __forceinline__ int teams_in_block() { return warps_in_block(); }
    static __device__ __forceinline__ int index_in_block() { return warp_index(); }
    static __device__ __forceinline__ int threads() { return warp_size; }
    static __device__ __forceinline__ int thread() { return lane_index(); }
    static __device__ __forceinline__ float max(float value) { return warp_max(value); }
    template <typename T> static __device__ __forceinline__ T sum(T value) { return warp_sum(value); }
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
    template <typename T> static __device__ __forceinline__ T sum(T value) { return block_sum(value); }
    static __device__ __forceinline__ void sums(float (&values)[2]) { block_sums(values); }
};

// Of all teams of the grid, which this is.
template <typename Team> __device__ __forceinline__ int64_t team_index() {
    return int64_t(blockIdx.x) * Team::teams_in_block() + Team::index_in_block();
}
