// Adam over many tensors in one launch, and the sum of the squares of many tensors.
//
// Bytes of an element in Adam: weight, first and second moment are read and written in fp32, 24; its gradient is read,
// 2 or 4; the 16-bit weight, where there is one, is written, 2. Squares read the gradient, 2 or 4.
// Floor: these bytes at the rate of a copy.
//
// Tensors come as a table in the device's memory, a row of `table_columns` numbers each; a block finds its tensor there
// by its number and does one chunk of it. Decay apart from the gradient, as Loshchilov and Hutter, arXiv 1711.05101,
// and in the order of torch.optim.AdamW. Every operation is rounded by itself where it is written so: then the result's
// bits depend neither on chunks nor on whether an address lets a vector be loaded.
#include "device.cuh"

constexpr int threads = 256;
constexpr int width = 4;  // elements of a vector
constexpr int depth = 4;  // vectors of a thread under way at once
constexpr int64_t adam_chunk = threads * width * depth;
constexpr int64_t squares_chunk = adam_chunk * 8;

// What each row of the table says: addresses, how many elements, and the number of the tensor's first block.
enum Column { weight_at, gradient_at, first_at, second_at, half_at, elements_at, block_at, table_columns };

// The row of the table in whose blocks this one is.
__device__ __forceinline__ const int64_t* row_of_block(const int64_t* table, int32_t tensors) {
    int32_t low = 0, high = tensors - 1;
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (table[int64_t(middle) * table_columns + block_at] <= int64_t(blockIdx.x)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return table + int64_t(low) * table_columns;
}

struct AdamNumbers {
    float scale;            // of the gradient, as it is read
    float kept_weight;      // 1 - learning rate * decay
    float of_gradient;      // 1 - beta1
    float beta2, of_square; // and 1 - beta2
    float step_size;        // learning rate / (1 - beta1^step)
    float root_correction;  // sqrt(1 - beta2^step)
    float epsilon;
};

__device__ __forceinline__ void update(float& weight, float& first, float& second, float gradient,
                                       const AdamNumbers& by) {
    const float scaled = __fmul_rn(gradient, by.scale);
    first = __fmaf_rn(by.of_gradient, __fsub_rn(scaled, first), first);
    second = __fmaf_rn(__fmul_rn(by.of_square, scaled), scaled, __fmul_rn(by.beta2, second));
    const float root = __fadd_rn(__fdiv_rn(__fsqrt_rn(second), by.root_correction), by.epsilon);
    weight = __fsub_rn(__fmul_rn(weight, by.kept_weight), __fmul_rn(by.step_size, __fdiv_rn(first, root)));
}

template <typename T> __device__ __forceinline__ bool is_vector(int64_t address) {
    return Vec<T, width>::is_aligned(reinterpret_cast<const void*>(address));
}

template <typename Gradient, typename Half16>
__device__ __forceinline__ void adam(const int64_t* table, int32_t tensors, const float* scale_at, AdamNumbers by) {
    if (scale_at) by.scale = *scale_at;
    const int64_t* row = row_of_block(table, tensors);
    float* const weights = reinterpret_cast<float*>(row[weight_at]);
    float* const firsts = reinterpret_cast<float*>(row[first_at]);
    float* const seconds = reinterpret_cast<float*>(row[second_at]);
    const Gradient* const gradients = reinterpret_cast<const Gradient*>(row[gradient_at]);
    Half16* const halves = reinterpret_cast<Half16*>(row[half_at]);
    const int64_t begin = (int64_t(blockIdx.x) - row[block_at]) * adam_chunk;
    const int64_t end = begin + adam_chunk < row[elements_at] ? begin + adam_chunk : row[elements_at];
    int64_t at = begin;
    if (is_vector<float>(row[weight_at]) && is_vector<float>(row[first_at]) && is_vector<float>(row[second_at]) &&
        is_vector<Gradient>(row[gradient_at]) && is_vector<Half16>(row[half_at])) {
        const int64_t vectors_end = begin + (end - begin) / width * width;
        Vec<float, width> weight[depth], first[depth], second[depth];
        Vec<Gradient, width> gradient[depth];
#pragma unroll
        for (int turn = 0; turn < depth; ++turn) {
            const int64_t element = begin + (int64_t(turn) * threads + threadIdx.x) * width;
            if (element >= vectors_end) break;
            weight[turn] = Vec<float, width>::load(weights + element);
            first[turn] = Vec<float, width>::load(firsts + element);
            second[turn] = Vec<float, width>::load(seconds + element);
            gradient[turn] = Vec<Gradient, width>::load(gradients + element);
        }
#pragma unroll
        for (int turn = 0; turn < depth; ++turn) {
            const int64_t element = begin + (int64_t(turn) * threads + threadIdx.x) * width;
            if (element >= vectors_end) break;
            Vec<Half16, width> half;
#pragma unroll
            for (int one = 0; one < width; ++one) {
                update(weight[turn][one], first[turn][one], second[turn][one], to_float(gradient[turn][one]), by);
                half[one] = from_float<Half16>(weight[turn][one]);
            }
            weight[turn].store_streaming(weights + element);
            first[turn].store_streaming(firsts + element);
            second[turn].store_streaming(seconds + element);
            if (halves) half.store(halves + element);
        }
        at = vectors_end;
    }
    for (at += threadIdx.x; at < end; at += threads) {
        float weight = weights[at], first = firsts[at], second = seconds[at];
        update(weight, first, second, to_float(gradients[at]), by);
        weights[at] = weight;
        firsts[at] = first;
        seconds[at] = second;
        if (halves) halves[at] = from_float<Half16>(weight);
    }
}

// A double that sums over warps and blocks as device.cuh sums floats.
struct Wide {
    double value;
};
struct WideSum {
    static __device__ __forceinline__ Wide identity() { return Wide{0.0}; }
    __device__ __forceinline__ Wide operator()(Wide a, Wide b) const { return Wide{a.value + b.value}; }
};
__device__ __forceinline__ Wide from_lane_xor(Wide value, int mask) {
    return Wide{__shfl_xor_sync(every_lane, value.value, mask)};
}
__device__ __forceinline__ double block_sum_wide(double value) {
    Wide values[1] = {Wide{value}};
    block_combine<WideSum>(values);
    return values[0].value;
}

// partials[block] <- the chunk's sum of squares; each square is exact in fp64, where no sum of finite ones overflows.
// Which thread adds what does not depend on the address: a vector's elements are the same thread's either way.
template <typename T> __device__ __forceinline__ void squares(double* partials, const int64_t* table, int32_t tensors) {
    const int64_t* row = row_of_block(table, tensors);
    const T* const gradients = reinterpret_cast<const T*>(row[gradient_at]);
    const int64_t begin = (int64_t(blockIdx.x) - row[block_at]) * squares_chunk;
    const int64_t end = begin + squares_chunk < row[elements_at] ? begin + squares_chunk : row[elements_at];
    const bool is_aligned = is_vector<T>(row[gradient_at]);
    double sum = 0.0;
    for (int64_t first = begin + int64_t(threadIdx.x) * width; first < end; first += int64_t(depth) * threads * width) {
        Vec<T, width> read[depth];
#pragma unroll
        for (int turn = 0; turn < depth; ++turn) {
            const int64_t at = first + int64_t(turn) * threads * width;
            if (is_aligned && at + width <= end) {
                read[turn] = Vec<T, width>::load(gradients + at);
                continue;
            }
#pragma unroll
            for (int one = 0; one < width; ++one) {
                read[turn][one] = at + one < end ? gradients[at + one] : from_float<T>(0.0f);
            }
        }
#pragma unroll
        for (int turn = 0; turn < depth; ++turn) {
#pragma unroll
            for (int one = 0; one < width; ++one) {
                const double x = double(to_float(read[turn][one]));
                sum += x * x;
            }
        }
    }
    sum = block_sum_wide(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// total[0] <- the sum of `count` partial sums, by one block.
extern "C" __global__ void __launch_bounds__(threads) squares_total(
    double* total, const double* partials, int64_t count) {
    double sum = 0.0;
#pragma unroll 4
    for (int64_t at = threadIdx.x; at < count; at += threads) sum += partials[at];
    sum = block_sum_wide(sum);
    if (threadIdx.x == 0) *total = sum;
}
EXPORT(squares_total)

extern "C" __global__ void __launch_bounds__(threads) adam_f32_f32(
    const int64_t* table, int32_t tensors, const float* scale_at, float scale, float kept_weight, float of_gradient,
    float beta2, float of_square, float step_size, float root_correction, float epsilon) {
    adam<float, float>(table, tensors, scale_at,
                       {scale, kept_weight, of_gradient, beta2, of_square, step_size, root_correction, epsilon});
}
EXPORT(adam_f32_f32)

extern "C" __global__ void __launch_bounds__(threads) adam_f32_f16(
    const int64_t* table, int32_t tensors, const float* scale_at, float scale, float kept_weight, float of_gradient,
    float beta2, float of_square, float step_size, float root_correction, float epsilon) {
    adam<float, Half>(table, tensors, scale_at,
                      {scale, kept_weight, of_gradient, beta2, of_square, step_size, root_correction, epsilon});
}
EXPORT(adam_f32_f16)

extern "C" __global__ void __launch_bounds__(threads) adam_f32_bf16(
    const int64_t* table, int32_t tensors, const float* scale_at, float scale, float kept_weight, float of_gradient,
    float beta2, float of_square, float step_size, float root_correction, float epsilon) {
    adam<float, BFloat16>(table, tensors, scale_at,
                          {scale, kept_weight, of_gradient, beta2, of_square, step_size, root_correction, epsilon});
}
EXPORT(adam_f32_bf16)

extern "C" __global__ void __launch_bounds__(threads) adam_f16_f16(
    const int64_t* table, int32_t tensors, const float* scale_at, float scale, float kept_weight, float of_gradient,
    float beta2, float of_square, float step_size, float root_correction, float epsilon) {
    adam<Half, Half>(table, tensors, scale_at,
                     {scale, kept_weight, of_gradient, beta2, of_square, step_size, root_correction, epsilon});
}
EXPORT(adam_f16_f16)

extern "C" __global__ void __launch_bounds__(threads) adam_bf16_bf16(
    const int64_t* table, int32_t tensors, const float* scale_at, float scale, float kept_weight, float of_gradient,
    float beta2, float of_square, float step_size, float root_correction, float epsilon) {
    adam<BFloat16, BFloat16>(table, tensors, scale_at,
                             {scale, kept_weight, of_gradient, beta2, of_square, step_size, root_correction, epsilon});
}
EXPORT(adam_bf16_bf16)

extern "C" __global__ void __launch_bounds__(threads) squares_f32(
    double* partials, const int64_t* table, int32_t tensors) {
    squares<float>(partials, table, tensors);
}
EXPORT(squares_f32)

extern "C" __global__ void __launch_bounds__(threads) squares_f16(
    double* partials, const int64_t* table, int32_t tensors) {
    squares<Half>(partials, table, tensors);
}
EXPORT(squares_f16)

extern "C" __global__ void __launch_bounds__(threads) squares_bf16(
    double* partials, const int64_t* table, int32_t tensors) {
    squares<BFloat16>(partials, table, tensors);
}
EXPORT(squares_bf16)
