// gelu(x + bias), in its tanh form or by erf, and activation(gate) * wide; with their gradients.
//
// Bytes: e per element of the tensors. gelu reads x and writes y: 2 e, its gradient reads two and writes one: 3 e. A
// gate's product moves 3 e, its gradient 5 e. A bias is f elements read once per tile, its gradient's partial sums are
// at most e / 8 (a row of fp32 for every 32 rows or more, written and read once more).
// Floor: these bytes at the rate of a copy. In 16 bits some 30 instructions per element are what a chip has for them,
// so exponentials are the fast ones there (their error, 1e-6, is far below a 16-bit number's); in fp32 they are exact.
//
// All is computed in fp32 from the input alone: with s the logistic function, gelu_tanh(x) = x s(2u),
// u = sqrt(2 / pi) (x + 0.044715 x^3), which is 0.5 x (1 + tanh u) without its cancellation for negative x.
#include "tiles.cuh"

// As trainer/kernels/cuda/activation.py numbers them.
enum Activation : int32_t { silu = 0, gelu_tanh = 1, gelu_erf = 2, relu = 3, none = 4 };

// The logistic function s and its slope s (1 - s). In fp32 of an exponential that is at most 1, so that neither is a
// difference: 1 - s would have s's rounding for an error, and be what is left of it.
struct Logistic {
    float value, slope;
};
template <typename T> __device__ __forceinline__ Logistic logistic(float x) {
    const float s = __fdividef(1.0f, 1.0f + __expf(-x));
    return {s, s * (1.0f - s)};
}
template <> __device__ __forceinline__ Logistic logistic<float>(float x) {
    const float e = expf(-fabsf(x)), larger = 1.0f / (1.0f + e), smaller = e * larger;
    return {x < 0.0f ? smaller : larger, smaller * larger};
}

struct Activated {
    float value, slope;
};

template <typename T, Activation activation> __device__ __forceinline__ Activated activated(float x) {
    if constexpr (activation == silu) {
        const Logistic s = logistic<T>(x);
        return {x * s.value, fmaf(x, s.slope, s.value)};
    } else if constexpr (activation == gelu_tanh) {
        constexpr float twice_root = 1.5957691216057308f;  // 2 sqrt(2 / pi)
        constexpr float cubic = 0.044715f;
        const float square = x * x;
        const Logistic s = logistic<T>(x * fmaf(twice_root * cubic, square, twice_root));
        // Of a great x only the first term is left; the second would be infinity times 0.
        const float steep = x * s.slope;
        return {x * s.value,
                steep == 0.0f ? s.value : fmaf(steep, fmaf(3.0f * twice_root * cubic, square, twice_root), s.value)};
    } else if constexpr (activation == gelu_erf) {
        constexpr float root_half = 0.7071067811865476f, root_of_2_pi_inverse = 0.3989422804014327f;
        const float s = 0.5f * (1.0f + erff(root_half * x));
        return {x * s, fmaf(x, exponential<T>(-0.5f * x * x) * root_of_2_pi_inverse, s)};
    } else if constexpr (activation == relu) {
        return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f};
    } else {
        return {x, 1.0f};
    }
}

// The activation that a kernel was made for, and the one that a number names: for the rare narrow tiles.
template <typename T, Activation activation> struct Fixed {
    __device__ __forceinline__ Activated operator()(float x) const { return activated<T, activation>(x); }
};
template <typename T> struct Named {
    int32_t activation;

    __device__ __forceinline__ Activated operator()(float x) const {
        switch (activation) {
            case silu: return activated<T, silu>(x);
            case gelu_tanh: return activated<T, gelu_tanh>(x);
            case gelu_erf: return activated<T, gelu_erf>(x);
            case relu: return activated<T, relu>(x);
            default: return activated<T, none>(x);
        }
    }
};

template <int number> struct Width {
    static constexpr int value = number;
};

// work(width, of): with the V of the launch's tiles, `widest` or 1, and what computes the activation.
template <typename T, bool is_gate, typename Work>
__device__ __forceinline__ void with_activation(int32_t activation, int32_t width, Work work) {
    constexpr Width<widest<T>> wide;
    if (width == 1) return work(Width<1>(), Named<T>{activation});
    if (activation == gelu_tanh) return work(wide, Fixed<T, gelu_tanh>());
    if (activation == gelu_erf) return work(wide, Fixed<T, gelu_erf>());
    if constexpr (is_gate) {
        if (activation == silu) return work(wide, Fixed<T, silu>());
        if (activation == relu) return work(wide, Fixed<T, relu>());
        work(wide, Fixed<T, none>());
    }
}

template <typename T, int V, typename Activate>
__device__ __forceinline__ void bias_gelu_tile(Activate of, T* y, const T* x, const T* bias, int64_t rows,
                                               int64_t columns, int64_t rows_per_block) {
    const Tile tile = tile_of_thread<V>(rows, columns, rows_per_block);
    float added[V];
    load_columns<T, V>(tile, bias, added);
    const T* const in[1] = {x};
    T* const out[1] = {y};
    over_tile<T, V>(tile, columns, in, out, [&](int64_t, const float (&read)[1][V], float (&written)[1][V]) {
#pragma unroll
        for (int at = 0; at < V; ++at) written[0][at] = of(read[0][at] + added[at]).value;
    });
}

template <typename T, int V, typename Activate>
__device__ __forceinline__ void bias_gelu_backward_tile(Activate of, T* of_x, float* partials, const T* gradient,
                                                        const T* x, const T* bias, int64_t rows, int64_t columns,
                                                        int64_t rows_per_block) {
    const Tile tile = tile_of_thread<V>(rows, columns, rows_per_block);
    float added[V], sums[V] = {};
    load_columns<T, V>(tile, bias, added);
    const T* const in[2] = {gradient, x};
    T* const out[1] = {of_x};
    over_tile<T, V>(tile, columns, in, out, [&](int64_t, const float (&read)[2][V], float (&written)[1][V]) {
#pragma unroll
        for (int at = 0; at < V; ++at) {
            written[0][at] = read[0][at] * of(read[1][at] + added[at]).slope;
            sums[at] += written[0][at];
        }
    });
    if (partials) store_column_sums<V>(sums, partials, columns);
}

template <typename T, int V, typename Activate>
__device__ __forceinline__ void gated_tile(Activate of, T* y, const T* gate, const T* wide, int64_t rows,
                                           int64_t columns, int64_t rows_per_block) {
    const T* const in[2] = {gate, wide};
    T* const out[1] = {y};
    const Tile tile = tile_of_thread<V>(rows, columns, rows_per_block);
    over_tile<T, V>(tile, columns, in, out, [&](int64_t, const float (&read)[2][V], float (&written)[1][V]) {
#pragma unroll
        for (int at = 0; at < V; ++at) written[0][at] = of(read[0][at]).value * read[1][at];
    });
}

template <typename T, int V, typename Activate>
__device__ __forceinline__ void gated_backward_tile(Activate of, T* of_gate, T* of_wide, const T* gradient,
                                                    const T* gate, const T* wide, int64_t rows, int64_t columns,
                                                    int64_t rows_per_block) {
    const T* const in[3] = {gradient, gate, wide};
    T* const out[2] = {of_gate, of_wide};
    const Tile tile = tile_of_thread<V>(rows, columns, rows_per_block);
    over_tile<T, V>(tile, columns, in, out, [&](int64_t, const float (&read)[3][V], float (&written)[2][V]) {
#pragma unroll
        for (int at = 0; at < V; ++at) {
            const Activated gate_of = of(read[1][at]);
            written[0][at] = read[0][at] * read[2][at] * gate_of.slope;
            written[1][at] = read[0][at] * gate_of.value;
        }
    });
}

template <typename T>
__device__ __forceinline__ void bias_gelu(T* y, const T* x, const T* bias, int64_t rows, int64_t columns,
                                          int64_t rows_per_block, int32_t form, int32_t width) {
    with_activation<T, false>(form, width, [&](auto v, auto of) {
        bias_gelu_tile<T, decltype(v)::value>(of, y, x, bias, rows, columns, rows_per_block);
    });
}

template <typename T>
__device__ __forceinline__ void bias_gelu_backward(T* of_x, float* partials, const T* gradient, const T* x,
                                                   const T* bias, int64_t rows, int64_t columns, int64_t rows_per_block,
                                                   int32_t form, int32_t width) {
    with_activation<T, false>(form, width, [&](auto v, auto of) {
        bias_gelu_backward_tile<T, decltype(v)::value>(of, of_x, partials, gradient, x, bias, rows, columns,
                                                       rows_per_block);
    });
}

template <typename T>
__device__ __forceinline__ void gated(T* y, const T* gate, const T* wide, int64_t rows, int64_t columns,
                                      int64_t rows_per_block, int32_t activation, int32_t width) {
    with_activation<T, true>(activation, width, [&](auto v, auto of) {
        gated_tile<T, decltype(v)::value>(of, y, gate, wide, rows, columns, rows_per_block);
    });
}

template <typename T>
__device__ __forceinline__ void gated_backward(T* of_gate, T* of_wide, const T* gradient, const T* gate, const T* wide,
                                               int64_t rows, int64_t columns, int64_t rows_per_block,
                                               int32_t activation, int32_t width) {
    with_activation<T, true>(activation, width, [&](auto v, auto of) {
        gated_backward_tile<T, decltype(v)::value>(of, of_gate, of_wide, gradient, gate, wide, rows, columns,
                                                   rows_per_block);
    });
}

extern "C" __global__ void __launch_bounds__(tile_threads) bias_gelu_f32(
    float* y, const float* x, const float* bias, int64_t rows, int64_t columns, int64_t rows_per_block, int32_t form,
    int32_t width) {
    bias_gelu<float>(y, x, bias, rows, columns, rows_per_block, form, width);
}
EXPORT(bias_gelu_f32)

extern "C" __global__ void __launch_bounds__(tile_threads) bias_gelu_f16(
    Half* y, const Half* x, const Half* bias, int64_t rows, int64_t columns, int64_t rows_per_block, int32_t form,
    int32_t width) {
    bias_gelu<Half>(y, x, bias, rows, columns, rows_per_block, form, width);
}
EXPORT(bias_gelu_f16)

extern "C" __global__ void __launch_bounds__(tile_threads) bias_gelu_bf16(
    BFloat16* y, const BFloat16* x, const BFloat16* bias, int64_t rows, int64_t columns, int64_t rows_per_block,
    int32_t form, int32_t width) {
    bias_gelu<BFloat16>(y, x, bias, rows, columns, rows_per_block, form, width);
}
EXPORT(bias_gelu_bf16)

extern "C" __global__ void __launch_bounds__(tile_threads) bias_gelu_backward_f32(
    float* of_x, float* partials, const float* gradient, const float* x, const float* bias, int64_t rows,
    int64_t columns, int64_t rows_per_block, int32_t form, int32_t width) {
    bias_gelu_backward<float>(of_x, partials, gradient, x, bias, rows, columns, rows_per_block, form, width);
}
EXPORT(bias_gelu_backward_f32)

extern "C" __global__ void __launch_bounds__(tile_threads) bias_gelu_backward_f16(
    Half* of_x, float* partials, const Half* gradient, const Half* x, const Half* bias, int64_t rows, int64_t columns,
    int64_t rows_per_block, int32_t form, int32_t width) {
    bias_gelu_backward<Half>(of_x, partials, gradient, x, bias, rows, columns, rows_per_block, form, width);
}
EXPORT(bias_gelu_backward_f16)

extern "C" __global__ void __launch_bounds__(tile_threads) bias_gelu_backward_bf16(
    BFloat16* of_x, float* partials, const BFloat16* gradient, const BFloat16* x, const BFloat16* bias, int64_t rows,
    int64_t columns, int64_t rows_per_block, int32_t form, int32_t width) {
    bias_gelu_backward<BFloat16>(of_x, partials, gradient, x, bias, rows, columns, rows_per_block, form, width);
}
EXPORT(bias_gelu_backward_bf16)

extern "C" __global__ void __launch_bounds__(tile_threads) gated_f32(
    float* y, const float* gate, const float* wide, int64_t rows, int64_t columns, int64_t rows_per_block,
    int32_t activation, int32_t width) {
    gated<float>(y, gate, wide, rows, columns, rows_per_block, activation, width);
}
EXPORT(gated_f32)

extern "C" __global__ void __launch_bounds__(tile_threads) gated_f16(
    Half* y, const Half* gate, const Half* wide, int64_t rows, int64_t columns, int64_t rows_per_block,
    int32_t activation, int32_t width) {
    gated<Half>(y, gate, wide, rows, columns, rows_per_block, activation, width);
}
EXPORT(gated_f16)

extern "C" __global__ void __launch_bounds__(tile_threads) gated_bf16(
    BFloat16* y, const BFloat16* gate, const BFloat16* wide, int64_t rows, int64_t columns, int64_t rows_per_block,
    int32_t activation, int32_t width) {
    gated<BFloat16>(y, gate, wide, rows, columns, rows_per_block, activation, width);
}
EXPORT(gated_bf16)

extern "C" __global__ void __launch_bounds__(tile_threads) gated_backward_f32(
    float* of_gate, float* of_wide, const float* gradient, const float* gate, const float* wide, int64_t rows,
    int64_t columns, int64_t rows_per_block, int32_t activation, int32_t width) {
    gated_backward<float>(of_gate, of_wide, gradient, gate, wide, rows, columns, rows_per_block, activation, width);
}
EXPORT(gated_backward_f32)

extern "C" __global__ void __launch_bounds__(tile_threads) gated_backward_f16(
    Half* of_gate, Half* of_wide, const Half* gradient, const Half* gate, const Half* wide, int64_t rows,
    int64_t columns, int64_t rows_per_block, int32_t activation, int32_t width) {
    gated_backward<Half>(of_gate, of_wide, gradient, gate, wide, rows, columns, rows_per_block, activation, width);
}
EXPORT(gated_backward_f16)

extern "C" __global__ void __launch_bounds__(tile_threads) gated_backward_bf16(
    BFloat16* of_gate, BFloat16* of_wide, const BFloat16* gradient, const BFloat16* gate, const BFloat16* wide,
    int64_t rows, int64_t columns, int64_t rows_per_block, int32_t activation, int32_t width) {
    gated_backward<BFloat16>(of_gate, of_wide, gradient, gate, wide, rows, columns, rows_per_block, activation, width);
}
EXPORT(gated_backward_bf16)

extern "C" __global__ void __launch_bounds__(tile_threads) activation_bias_gradient_f32(
    float* out, const float* partials, int64_t parts, int64_t columns) {
    add_up_columns<float>(out, partials, parts, columns);
}
EXPORT(activation_bias_gradient_f32)

extern "C" __global__ void __launch_bounds__(tile_threads) activation_bias_gradient_f16(
    Half* out, const float* partials, int64_t parts, int64_t columns) {
    add_up_columns<Half>(out, partials, parts, columns);
}
EXPORT(activation_bias_gradient_f16)

extern "C" __global__ void __launch_bounds__(tile_threads) activation_bias_gradient_bf16(
    BFloat16* out, const float* partials, int64_t parts, int64_t columns) {
    add_up_columns<BFloat16>(out, partials, parts, columns);
}
EXPORT(activation_bias_gradient_bf16)
