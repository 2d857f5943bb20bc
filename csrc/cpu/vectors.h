// Vectors of floats, as wide as the level that the library is built for: 16 lanes with AVX-512, 8 with AVX, else 4.
//
// Beside the compiler's own vector type only what it has no word for: a fused multiply-add (each level rounds once
// where its instructions do, whatever the compiler is told of contraction), exp, and sums over lanes in one order.
// 16-bit elements are bfloat16, computed with as fp32 and rounded to the nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>

#include "bfloat16.h"

#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace vectors {

#if defined(__AVX512F__)
constexpr int64_t lanes = 16;
#elif defined(__AVX__)
constexpr int64_t lanes = 8;
#else
constexpr int64_t lanes = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * lanes)));
typedef int32_t Integers __attribute__((vector_size(4 * lanes)));
typedef uint32_t Bits __attribute__((vector_size(4 * lanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * lanes)));

using ::BFloat16;

inline Vector broadcast(float value) {
    return value - Vector{};
}

inline Vector load(const float* from) {
    Vector loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

inline Vector load(const BFloat16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return (Vector)(__builtin_convertvector(halves, Bits) << 16);
}

inline void store(float* to, Vector value) {
    std::memcpy(to, &value, sizeof value);
}

inline Halves rounded_to_bf16(Vector value) {
    const Bits bits = (Bits)value;
    const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Bits quiet = (bits >> 16) | 0x40u;
    return __builtin_convertvector((Bits)(value != value ? (Integers)quiet : (Integers)rounded), Halves);
}

inline void store(BFloat16* to, Vector value) {
    const Halves halves = rounded_to_bf16(value);
    std::memcpy(to, &halves, sizeof halves);
}

// The first `count` elements, zeros behind them.
template <typename Element>
inline Vector load(const Element* from, int64_t count) {
    Element some[lanes] = {};
    std::memcpy(some, from, count * sizeof(Element));
    return load(some);
}

template <typename Element>
inline void store(Element* to, Vector value, int64_t count) {
    Element some[lanes];
    store(some, value);
    std::memcpy(to, some, count * sizeof(Element));
}

// body(at, count) for each vector of `count` elements, the last one perhaps a part of one.
template <typename Body>
inline __attribute__((always_inline)) void by_vectors(int64_t count, Body body) {
    int64_t at = 0;
    for (; at + lanes <= count; at += lanes)
        body(at, lanes);
    if (at < count)
        body(at, count - at);
}

template <typename Element>
inline Vector loaded(const Element* from, int64_t count) {
    return count == lanes ? load(from) : load(from, count);
}

template <typename Element>
inline void stored(Element* to, Vector value, int64_t count) {
    if (count == lanes)
        store(to, value);
    else
        store(to, value, count);
}

// a * b + c
inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

inline Vector greater_of(Vector a, Vector b) {
    return a > b ? a : b;
}

inline float sum(Vector value) {
    for (int64_t half = lanes / 2; half; half /= 2)
        for (int64_t lane = 0; lane < half; lane++)
            value[lane] += value[lane + half];
    return value[0];
}

inline float greatest(Vector value) {
    float most = value[0];
    for (int64_t lane = 1; lane < lanes; lane++)
        most = value[lane] > most ? value[lane] : most;
    return most;
}

inline Vector square_root(Vector value) {
    for (int64_t lane = 0; lane < lanes; lane++)
        value[lane] = __builtin_sqrtf(value[lane]);
    return value;
}

// exp(x) within 1 ulp for x <= 88; 0 below the smallest normal number. Not a number stays none.
// x = n ln 2 + r with |r| <= ln 2 / 2, and exp(r) = 1 + r + r^2 q(r): q is a minimax fit of degree 4, error 3e-9.
inline Vector exponential(Vector x) {
    const float lowest = -87.33654f, highest = 88.37626f, rounder = 12582912.0f;
    const Vector clamped = x < lowest ? broadcast(lowest) : x > highest ? broadcast(highest) : x;
    const Vector shifted = multiply_add(clamped, broadcast(1.44269504f), broadcast(rounder));
    const Vector n = shifted - rounder;
    Vector r = multiply_add(n, broadcast(-0.693359375f), clamped);
    r = multiply_add(n, broadcast(2.12194440e-4f), r);
    Vector q = broadcast(0.0013814539f);
    q = multiply_add(q, r, broadcast(0.008368745f));
    q = multiply_add(q, r, broadcast(0.04166839f));
    q = multiply_add(q, r, broadcast(0.16666521f));
    q = multiply_add(q, r, broadcast(0.49999994f));
    const Vector fraction = multiply_add(q, r * r, r) + 1.0f;
    const Vector power = (Vector)(((Integers)shifted << 23) + 0x3f800000);
    return x < lowest ? Vector{} : fraction * power;
}

}  // namespace vectors
