// CUDA's words for g++: what a kernel calls, as calls into the emulator of a thread block (blocks.cpp).
//
// Threads of a block are fibers of one system thread; they give way only at barriers and shuffles, and blocks follow
// each other. So nothing runs at the same time, and yet every order in which a warp or thread may run ahead can be
// tried. What it cannot show: see docs/kernels.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct uint3 {
    uint32_t x, y, z;
};
struct dim3 {
    uint32_t x = 1, y = 1, z = 1;
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulator {

// Where in a kernel something was called, for what is said of it.
struct Place {
    const char* file;
    int line;
};

enum class Meeting : int { none, barrier, barrier_or, barrier_and, barrier_count, sync_warp, shuffle, vote };

uint64_t meet_block(Meeting meeting, bool predicate, Place place);
// The value of `source_lane`, or of the lane itself where that is negative; for votes the lanes that voted yes.
uint64_t meet_warp(Meeting meeting, const char* name, unsigned mask, uint64_t value, int source_lane, Place place);
int lane();
[[noreturn]] void refuse(const char* what, Place place);
void require_aligned(const void* address, int bytes, const char* file = __builtin_FILE(), int line = __builtin_LINE());

void* shared_place(void* own, int64_t bytes);
void* dynamic_shared();

// A static of the kernel's function, told to the emulator by each thread that comes by, and poisoned before every
// block.
template <typename T, int count> struct SharedArray {
    alignas(16) T values[count];
};
template <typename T, int count> inline T (&shared(SharedArray<T, count>& array))
    [count] { return *static_cast<T(*)[count]>(shared_place(array.values, int64_t(sizeof(array.values)))); }

inline float half_to_float(uint16_t bits) {
    _Float16 narrow;
    std::memcpy(&narrow, &bits, 2);
    return float(narrow);
}
inline uint16_t float_to_half(float value) {
    const _Float16 narrow = _Float16(value);
    uint16_t bits;
    std::memcpy(&bits, &narrow, 2);
    return std::isnan(value) ? uint16_t(0x7fff) : bits;
}

template <typename T> inline uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <typename T> inline T from_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

inline int first_lane_of(int width, Place place) {
    if (width < 1 || width > 32 || (width & (width - 1)))
        refuse("a shuffle's width is no power of two up to 32", place);
    return lane() & ~(width - 1);
}

// As Python's ctypes calls the types, so that a launch's arguments can be held against the kernel's parameters.
template <typename T> constexpr char type_code() {
    if (std::is_pointer_v<T>) return 'P';
    if (std::is_same_v<T, bool>) return '?';
    if (std::is_same_v<T, float>) return 'f';
    if (std::is_same_v<T, double>) return 'd';
    if (std::is_integral_v<T> && sizeof(T) == 4) return std::is_signed_v<T> ? 'i' : 'I';
    if (std::is_integral_v<T> && sizeof(T) == 8) return std::is_signed_v<T> ? 'l' : 'L';
    return '!';
}
template <typename... Arguments> const char* signature_of(void (*)(Arguments...)) {
    static constexpr char codes[] = {type_code<Arguments>()..., '\0'};
    return codes;
}
template <typename... Arguments, std::size_t... at>
void call_with(void (*kernel)(Arguments...), void** arguments, std::index_sequence<at...>) {
    kernel(*static_cast<std::remove_cv_t<Arguments>*>(arguments[at])...);
}
template <typename... Arguments> void call(void (*kernel)(Arguments...), void** arguments) {
    call_with(kernel, arguments, std::index_sequence_for<Arguments...>());
}

}  // namespace emulator

#define EXPORT(kernel_name)                                                                        \
    extern "C" __attribute__((visibility("default"))) void kernel_name##__call(void** arguments) { \
        emulator::call(kernel_name, arguments);                                                    \
    }                                                                                              \
    extern "C" __attribute__((visibility("default"))) const char* kernel_name##__signature() {     \
        return emulator::signature_of(kernel_name);                                                \
    }
#define SHARED(type, name, count)                             \
    static emulator::SharedArray<type, count> name##_storage; \
    type(&name)[count] = emulator::shared(name##_storage)
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(emulator::dynamic_shared())

// ----------------------------------------------------------------------------------------------- barriers and shuffles
#define EMULATOR_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMULATOR_PLACE) { emulator::meet_block(emulator::Meeting::barrier, false, {file, line}); }
inline int __syncthreads_or(int yes, EMULATOR_PLACE) {
    return int(emulator::meet_block(emulator::Meeting::barrier_or, yes != 0, {file, line}));
}
inline int __syncthreads_and(int yes, EMULATOR_PLACE) {
    return int(emulator::meet_block(emulator::Meeting::barrier_and, yes != 0, {file, line}));
}
inline int __syncthreads_count(int yes, EMULATOR_PLACE) {
    return int(emulator::meet_block(emulator::Meeting::barrier_count, yes != 0, {file, line}));
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_PLACE) {
    emulator::meet_warp(emulator::Meeting::sync_warp, "__syncwarp", mask, 0, -1, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int yes, EMULATOR_PLACE) {
    return unsigned(emulator::meet_warp(emulator::Meeting::vote, "__ballot_sync", mask, yes != 0, -1, {file, line}));
}
inline int __any_sync(unsigned mask, int yes, EMULATOR_PLACE) {
    return emulator::meet_warp(emulator::Meeting::vote, "__any_sync", mask, yes != 0, -1, {file, line}) != 0;
}
inline int __all_sync(unsigned mask, int yes, EMULATOR_PLACE) {
    return emulator::meet_warp(emulator::Meeting::vote, "__all_sync", mask, yes != 0, -1, {file, line}) == mask;
}

template <typename T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_PLACE) {
    const int from = emulator::first_lane_of(width, {file, line}) + (source & (width - 1));
    return emulator::from_bits<T>(emulator::meet_warp(emulator::Meeting::shuffle, "__shfl_sync", mask,
                                                      emulator::to_bits(value), from, {file, line}));
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMULATOR_PLACE) {
    const int first = emulator::first_lane_of(width, {file, line});
    const int from = emulator::lane() ^ lane_mask;  // reads below its own segment, never above
    return emulator::from_bits<T>(emulator::meet_warp(emulator::Meeting::shuffle, "__shfl_xor_sync", mask,
                                                      emulator::to_bits(value), from < first + width ? from : -1,
                                                      {file, line}));
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_PLACE) {
    const int first = emulator::first_lane_of(width, {file, line}), from = emulator::lane() - int(by);
    return emulator::from_bits<T>(emulator::meet_warp(emulator::Meeting::shuffle, "__shfl_up_sync", mask,
                                                      emulator::to_bits(value), from >= first ? from : -1,
                                                      {file, line}));
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_PLACE) {
    const int first = emulator::first_lane_of(width, {file, line}), from = emulator::lane() + int(by);
    return emulator::from_bits<T>(emulator::meet_warp(emulator::Meeting::shuffle, "__shfl_down_sync", mask,
                                                      emulator::to_bits(value), from < first + width ? from : -1,
                                                      {file, line}));
}

#undef EMULATOR_PLACE

inline void __threadfence() {}
inline void __threadfence_block() {}

// ------------------------------------------------------------------------------------------------------------- memory
template <typename T> inline T __ldg(const T* from) { return *from; }
template <typename T> inline T __ldcs(const T* from) { return *from; }
template <typename T> inline void __stcs(T* to, T value) { *to = value; }
template <typename T> inline void __stcg(T* to, T value) { *to = value; }

template <typename T> inline T atomicAdd(T* at, T value) {
    const T before = *at;
    *at = before + value;
    return before;
}
template <typename T> inline T atomicMax(T* at, T value) {
    const T before = *at;
    *at = before > value ? before : value;
    return before;
}
template <typename T> inline T atomicMin(T* at, T value) {
    const T before = *at;
    *at = before < value ? before : value;
    return before;
}
template <typename T> inline T atomicOr(T* at, T value) {
    const T before = *at;
    *at = before | value;
    return before;
}
template <typename T> inline T atomicExch(T* at, T value) {
    const T before = *at;
    *at = value;
    return before;
}
template <typename T> inline T atomicCAS(T* at, T expected, T value) {
    const T before = *at;
    if (before == expected) *at = value;
    return before;
}

// ------------------------------------------------------------------------------------------------------------ numbers
inline uint32_t __float_as_uint(float value) { return uint32_t(emulator::to_bits(value)); }
inline int32_t __float_as_int(float value) { return int32_t(emulator::to_bits(value)); }
inline float __uint_as_float(uint32_t bits) { return emulator::from_bits<float>(bits); }
inline float __int_as_float(int32_t bits) { return emulator::from_bits<float>(uint32_t(bits)); }

// The compiler is told not to fuse (-ffp-contract=off), so these are what they say.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float rsqrtf(float a) { return float(1.0 / sqrt(double(a))); }
inline double rsqrt(double a) { return 1.0 / sqrt(a); }
// The chip's fast ones are less exact: their accuracy is not shown here.
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __log2f(float a) { return log2f(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }

inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t((uint64_t(a) * b) >> 32); }
inline int32_t __mulhi(int32_t a, int32_t b) { return int32_t((int64_t(a) * b) >> 32); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return uint64_t((static_cast<unsigned __int128>(a) * b) >> 64); }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline int __popcll(uint64_t bits) { return __builtin_popcountll(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(uint32_t(bits)) : 32; }

template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

inline void __trap() { emulator::refuse("__trap", {__builtin_FILE(), __builtin_LINE()}); }
