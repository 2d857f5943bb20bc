// What every kernel here is written with, under nvcc, NVRTC (without any header of CUDA) and g++ (the emulator).
//
// * Numbers: float, Half and BFloat16. The 16-bit types are storage: they become float, in which all is computed, and
//   are rounded back to the nearest, ties to even. So one source serves sm_70, which has no bfloat16, and all after it.
// * Memory: Vec<T, N>, N elements in as few accesses of at most 16 bytes as there can be; SHARED and DYNAMIC_SHARED.
// * Sums and maxima over a warp or block, in an order that depends on the block's size alone; every thread has them.
//
// A file of kernels ends in instances, which Python starts by their names:
//     extern "C" __global__ void scale_f32(float* out, const float* in, float by, int64_t count) { ... }
//     EXPORT(scale_f32)
// Blocks have one dimension of whole warps, at most 1024 threads, wherever a function of this file is used.
#pragma once

#if defined(__CUDACC__)
#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
#else
#include <cstdint>
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#define EXPORT(kernel_name)
// An array that the block's threads have in common, 16-byte aligned; what is in it at first is not defined.
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
// The shared memory that the launch asks for in bytes, 16-byte aligned; every name is of the same bytes.
#define DYNAMIC_SHARED(type, name)                                                                                     \
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];                                              \
    type* const name = reinterpret_cast<type*>(dynamic_shared_bytes)
#else
#include "emulated.h"  // tests/emulator
#endif

constexpr int warp_size = 32;
constexpr unsigned every_lane = 0xffffffffu;

// ------------------------------------------------------------------------------------------------------------ numbers
struct Half {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }

__device__ __forceinline__ float to_float(Half value) {
#if defined(__CUDACC__)
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
#else
    return emulator::half_to_float(value.bits);
#endif
}

__device__ __forceinline__ float to_float(BFloat16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }

template <typename T> __device__ __forceinline__ T from_float(float value);

template <> __device__ __forceinline__ float from_float<float>(float value) { return value; }

template <> __device__ __forceinline__ Half from_float<Half>(float value) {
    Half narrow;
#if defined(__CUDACC__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
#else
    narrow.bits = emulator::float_to_half(value);
#endif
    return narrow;
}

template <> __device__ __forceinline__ BFloat16 from_float<BFloat16>(float value) {
    BFloat16 narrow;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
#else
    const uint32_t bits = __float_as_uint(value);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    // The instruction's own NaN, so that all chips write the same bits.
    narrow.bits = is_nan ? uint16_t(0x7fff) : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
    return narrow;
}

// Two 16-bit numbers as they lie side by side, the first one in the low half.
template <typename T> __device__ __forceinline__ uint32_t two_of(float first, float second) {
    return uint32_t(from_float<T>(first).bits) | uint32_t(from_float<T>(second).bits) << 16;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ uint32_t two_of<Half>(float first, float second) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
template <> __device__ __forceinline__ uint32_t two_of<BFloat16>(float first, float second) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
#endif

// The fast one for numbers of 16 bits, far below whose rounding its error lies (1e-6); the exact one for those of 32.
template <typename T> __device__ __forceinline__ float exponential(float x) { return __expf(x); }
template <> __device__ __forceinline__ float exponential<float>(float x) { return expf(x); }

// exp(x) = power<T>(x * exponent_unit<T>), where x is multiplied by something anyway. In 16 bits that is one instruction;
// results below 2^-126 become 0.
template <typename T> constexpr float exponent_unit = 1.44269504f;
template <> constexpr float exponent_unit<float> = 1.0f;
template <typename T> __device__ __forceinline__ float power(float x) {
#if defined(__CUDACC__)
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
#else
    return exp2f(x);
#endif
}
template <> __device__ __forceinline__ float power<float>(float x) { return expf(x); }

// ------------------------------------------------------------------------------------------------------------- memory
namespace device {

template <int bytes> struct Word;
template <> struct Word<2> { using type = uint16_t; };
template <> struct Word<4> { using type = uint32_t; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };

}  // namespace device

// N neighbouring elements (N and their bytes powers of two), moved together. Addresses are multiples of `alignment`.
template <typename T, int N> struct Vec {
    static constexpr int bytes = int(sizeof(T)) * N;
    static constexpr int alignment = bytes < 16 ? bytes : 16;
    static constexpr int words = bytes / alignment;
    using Word = typename device::Word<alignment>::type;

    T values[N];

    __device__ __forceinline__ T& operator[](int at) { return values[at]; }
    __device__ __forceinline__ const T& operator[](int at) const { return values[at]; }

    static __device__ __forceinline__ bool is_aligned(const void* address) {
        return reinterpret_cast<unsigned long long>(address) % alignment == 0;
    }

    static __device__ __forceinline__ Vec load(const T* from) {
        Vec loaded;
        const Word* source = words_at(from);
#pragma unroll
        for (int word = 0; word < words; ++word) {
            const Word moved = source[word];
            memcpy(reinterpret_cast<unsigned char*>(loaded.values) + word * alignment, &moved, alignment);
        }
        return loaded;
    }

    __device__ __forceinline__ void store(T* to) const {
        Word* target = const_cast<Word*>(words_at(to));
#pragma unroll
        for (int word = 0; word < words; ++word) target[word] = word_of(word);
    }

    // For what is not read again soon: it is the first to leave the cache.
    __device__ __forceinline__ void store_streaming(T* to) const {
        Word* target = const_cast<Word*>(words_at(to));
#pragma unroll
        for (int word = 0; word < words; ++word) __stcs(target + word, word_of(word));
    }

  private:
    __device__ __forceinline__ Word word_of(int word) const {
        Word moved;
        memcpy(&moved, reinterpret_cast<const unsigned char*>(values) + word * alignment, alignment);
        return moved;
    }

    static __device__ __forceinline__ const Word* words_at(const T* address) {
#if !defined(__CUDACC__)
        emulator::require_aligned(address, alignment);
#endif
        return reinterpret_cast<const Word*>(address);
    }
};

// --------------------------------------------------------------------------------------------------- sums and maxima
__device__ __forceinline__ int lane_index() { return int(threadIdx.x) % warp_size; }
__device__ __forceinline__ int warp_index() { return int(threadIdx.x) / warp_size; }
__device__ __forceinline__ int warps_in_block() { return int(blockDim.x) / warp_size; }

// Each combines two values and gives the same bits whichever comes first, so that all lanes of a butterfly agree.
struct Sum {
    static __device__ __forceinline__ float identity() { return 0.0f; }
    template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct Max {
    static __device__ __forceinline__ float identity() { return -INFINITY; }
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// The greatest of some numbers x and the sum of exp(x - max), as online softmax carries them; (-inf, 0) of none.
struct MaxSum {
    float max;
    float sum;
};
struct JoinMaxSums {
    static __device__ __forceinline__ MaxSum identity() { return MaxSum{-INFINITY, 0.0f}; }
    __device__ __forceinline__ MaxSum operator()(MaxSum a, MaxSum b) const {
        const float max = fmaxf(a.max, b.max);
        // Both sums are 0 then, or NaN where some x is, of which fmaxf takes no notice.
        if (max == -INFINITY) return MaxSum{max, __fadd_rn(a.sum, b.sum)};
        // No fused multiply-add: it would round the two halves differently.
        const float of_a = __fmul_rn(a.sum, expf(a.max - max));
        const float of_b = __fmul_rn(b.sum, expf(b.max - max));
        return MaxSum{max, __fadd_rn(of_a, of_b)};
    }
};

template <typename T> __device__ __forceinline__ T from_lane_xor(T value, int mask) {
    return __shfl_xor_sync(every_lane, value, mask);
}
__device__ __forceinline__ MaxSum from_lane_xor(MaxSum value, int mask) {
    return MaxSum{__shfl_xor_sync(every_lane, value.max, mask), __shfl_xor_sync(every_lane, value.sum, mask)};
}

// Over each group of `lanes` neighbouring lanes (a power of two, the warp by default). All lanes of the warp must call.
template <typename Combine, int lanes = warp_size, typename T>
__device__ __forceinline__ T warp_combine(T value) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        value = Combine()(value, from_lane_xor(value, distance));
    }
    return value;
}
template <int lanes = warp_size, typename T> __device__ __forceinline__ T warp_sum(T value) {
    return warp_combine<Sum, lanes>(value);
}
template <int lanes = warp_size> __device__ __forceinline__ float warp_max(float value) {
    return warp_combine<Max, lanes>(value);
}
template <int lanes = warp_size> __device__ __forceinline__ MaxSum warp_max_sum(MaxSum value) {
    return warp_combine<JoinMaxSums, lanes>(value);
}

// `count` values of each thread over the block, in place. All threads must call; its two barriers let calls follow.
template <typename Combine, int count, typename T>
__device__ __forceinline__ void block_combine(T (&values)[count]) {
    SHARED(T, of_warps, (count * warp_size));
#pragma unroll
    for (int at = 0; at < count; ++at) {
        values[at] = warp_combine<Combine>(values[at]);
        if (lane_index() == 0) of_warps[at * warp_size + warp_index()] = values[at];
    }
    __syncthreads();
#pragma unroll
    for (int at = 0; at < count; ++at) {
        const bool is_warp = lane_index() < warps_in_block();
        values[at] = warp_combine<Combine>(is_warp ? of_warps[at * warp_size + lane_index()] : T(Combine::identity()));
    }
    __syncthreads();
}
template <int count> __device__ __forceinline__ void block_sums(float (&values)[count]) { block_combine<Sum>(values); }
template <typename T> __device__ __forceinline__ T block_sum(T value) {
    T values[1] = {value};
    block_combine<Sum>(values);
    return values[0];
}
__device__ __forceinline__ float block_max(float value) {
    float values[1] = {value};
    block_combine<Max>(values);
    return values[0];
}
__device__ __forceinline__ MaxSum block_max_sum(MaxSum value) {
    MaxSum values[1] = {value};
    block_combine<JoinMaxSums>(values);
    return values[0];
}
