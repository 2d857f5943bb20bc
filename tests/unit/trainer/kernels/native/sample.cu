// out[row] = sum of in[row, :], with what most kernels here are made of. Reads rows * columns elements.
#include "device.cuh"

template <typename T> __device__ void row_sum(T* out, const T* in, int64_t columns) {
    constexpr int width = 16 / int(sizeof(T));
    const T* row = in + int64_t(blockIdx.x) * columns;
    const int64_t whole = Vec<T, width>::is_aligned(row) ? columns / width * width : 0;
    float sum = 0.0f;
    for (int64_t at = int64_t(threadIdx.x) * width; at < whole; at += int64_t(blockDim.x) * width) {
        const auto loaded = Vec<T, width>::load(row + at);
#pragma unroll
        for (int element = 0; element < width; ++element) sum += to_float(loaded[element]);
    }
    for (int64_t at = whole + threadIdx.x; at < columns; at += blockDim.x) sum += to_float(row[at]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = from_float<T>(sum);
}

// ends[0] = log(sum(exp(in))), ends[1] = max(in), of one block.
__device__ void log_sum_exp(float* ends, const float* in, int64_t count) {
    MaxSum seen = JoinMaxSums::identity();
    for (int64_t at = threadIdx.x; at < count; at += blockDim.x) seen = JoinMaxSums()(seen, MaxSum{in[at], 1.0f});
    seen = block_max_sum(seen);
    const float nothing_lost = block_max(-seen.max);
    if (threadIdx.x == 0) {
        ends[0] = seen.max + logf(seen.sum);
        ends[1] = -nothing_lost;
    }
}

// Each row of a block's `columns` elements turned round, by way of dynamic shared memory.
template <typename T> __device__ void reversed(T* out, const T* in, int columns) {
    DYNAMIC_SHARED(T, held);
    for (int at = int(threadIdx.x); at < columns; at += int(blockDim.x)) held[at] = in[blockIdx.x * columns + at];
    __syncthreads();
    for (int at = int(threadIdx.x); at < columns; at += int(blockDim.x)) {
        out[blockIdx.x * columns + at] = held[columns - 1 - at];
    }
}

// `count` elements, eight at a time, rounded to T and past the cache.
template <typename T> __device__ void rounded(T* out, const float* in) {
    const int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    const auto wide = Vec<float, 8>::load(in + at);
    Vec<T, 8> narrow;
#pragma unroll
    for (int element = 0; element < 8; ++element) narrow[element] = from_float<T>(wide[element]);
    narrow.store_streaming(out + at);
}

extern "C" __global__ void row_sum_f32(float* out, const float* in, int64_t columns) { row_sum(out, in, columns); }
EXPORT(row_sum_f32)
extern "C" __global__ void row_sum_f16(Half* out, const Half* in, int64_t columns) { row_sum(out, in, columns); }
EXPORT(row_sum_f16)
extern "C" __global__ void row_sum_bf16(BFloat16* out, const BFloat16* in, int64_t columns) {
    row_sum(out, in, columns);
}
EXPORT(row_sum_bf16)
extern "C" __global__ void log_sum_exp_f32(float* ends, const float* in, int64_t count) {
    log_sum_exp(ends, in, count);
}
EXPORT(log_sum_exp_f32)
extern "C" __global__ void reversed_f32(float* out, const float* in, int columns) { reversed(out, in, columns); }
EXPORT(reversed_f32)
extern "C" __global__ void rounded_f16(Half* out, const float* in) { rounded(out, in); }
EXPORT(rounded_f16)
extern "C" __global__ void rounded_bf16(BFloat16* out, const float* in) { rounded(out, in); }
EXPORT(rounded_bf16)
