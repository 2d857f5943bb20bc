// GeLU with its bias, and gates: activation(gate) * wide, with their gradients.
//
// Bytes: an element in and one out forward (a gate's two in), one in more backward (a gate's two out). Floor: memory,
// as long as an exponential and a division for 8 or 16 elements at once take no longer than loading them.
//
// GeLU's tanh form is x * sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3), which for negative x does not lose
// what 1 + tanh(u) cancels. Its exact form is x * Phi(x), with fits of our own for erf on both sides of 1.
#include "row_blocks.h"
#include "vectors.h"

using namespace vectors;
using row_blocks::worth_threads;

namespace {

struct Activated {
    Vector value, slope;
};

// 1 / (1 + exp(-x)) and what is missing to 1, neither by subtraction. Where the power is no fp32 any more the first
// counts as 0, so that even the greatest negative number times it is nothing.
struct Sigmoid {
    Vector value, rest;

    explicit Sigmoid(Vector x) {
        const Vector power = exponential(x < -88.0f ? broadcast(88.0f) : -x);
        const Vector inverse = 1.0f / (1.0f + power);
        value = x < -88.0f ? Vector{} : inverse;
        rest = power * inverse;
    }
};

struct GeluTanh {
    static Activated of(Vector x) {
        const Vector square = x * x;
        const Vector twice = x * multiply_add(square, broadcast(0.0713548162726f), broadcast(1.59576912161f));
        const Sigmoid sigmoid(twice);
        const Vector steepness = multiply_add(square, broadcast(0.214064448818f), broadcast(1.59576912161f));
        // Far out both factors of the last term meet 0 * infinity; it is 0 there.
        const Vector bend = sigmoid.rest * sigmoid.value * steepness * x;
        const Vector is_near = (Vector)((Integers)(square < 400.0f) & (Integers)bend);
        return {x * sigmoid.value, sigmoid.value + is_near};
    }
};

// erf(z) = z p(z^2) up to 1, and erfc(z) = exp(-g(z - 2.5)) from there to 4: fits with errors of 1e-9. From there on
// erfc counts as 0, which is less than fp32 sees beside 1.
inline Vector normal_cumulative(Vector x) {
    const Vector z = x * 0.70710678f, size = z < 0.0f ? -z : z, square = z * z;
    Vector p = broadcast(7.8538564e-05f);
    p = multiply_add(p, square, broadcast(-0.0008010192f));
    p = multiply_add(p, square, broadcast(0.0051883273f));
    p = multiply_add(p, square, broadcast(-0.026853811f));
    p = multiply_add(p, square, broadcast(0.112835854f));
    p = multiply_add(p, square, broadcast(-0.37612626f));
    p = multiply_add(p, square, broadcast(1.1283791f));
    const Vector near_by = multiply_add(p, z * 0.5f, broadcast(0.5f));
    const Vector t = (size > 4.0f ? broadcast(4.0f) : size) - 2.5f;
    Vector g = broadcast(2.1697608e-05f);
    g = multiply_add(g, t, broadcast(-6.176443e-05f));
    g = multiply_add(g, t, broadcast(0.0004310068f));
    g = multiply_add(g, t, broadcast(-0.0021664586f));
    g = multiply_add(g, t, broadcast(0.010853502f));
    g = multiply_add(g, t, broadcast(0.9438918f));
    g = multiply_add(g, t, broadcast(5.3526807f));
    g = multiply_add(g, t, broadcast(7.806815f));
    const Vector tail = size > 4.0f ? Vector{} : 0.5f * exponential(-g);
    const Vector far_out = z < 0.0f ? tail : 1.0f - tail;
    return size > 1.0f ? far_out : near_by;
}

struct GeluErf {
    static Activated of(Vector x) {
        const Vector below = normal_cumulative(x);
        const Vector half_square = x * x * -0.5f;
        return {x * below, multiply_add(x * 0.3989422804f, exponential(half_square), below)};
    }
};

struct Silu {
    static Activated of(Vector x) {
        const Sigmoid sigmoid(x);
        return {x * sigmoid.value, multiply_add(x * sigmoid.value, sigmoid.rest, sigmoid.value)};
    }
};

struct Relu {
    static Activated of(Vector x) {
        const Vector one_or_none = x > 0.0f ? broadcast(1.0f) : Vector{};
        return {x < 0.0f ? Vector{} : x, one_or_none};
    }
};

struct Identity {
    static Activated of(Vector x) { return {x, broadcast(1.0f)}; }
};

template <typename Function, typename Element>
void bias_activation(const Element* x, const Element* bias, Element* out, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > worth_threads)
    for (int64_t row = 0; row < rows; row++) {
        const Element* from = x + row * width;
        Element* to = out + row * width;
        by_vectors(width, [=](int64_t at, int64_t count) {
            const Vector input = loaded(from + at, count);
            stored(to + at, Function::of(bias ? input + loaded(bias + at, count) : input).value, count);
        });
    }
}

template <typename Function, typename Element>
int bias_activation_backward(const Element* gradient, const Element* x, const Element* bias, Element* of_x,
                             Element* of_bias, int64_t rows, int64_t width) {
    const row_blocks::Blocks blocks(rows);
    const row_blocks::Sums sums(blocks, of_bias ? width : 0);
    if (!sums.exist())
        return 1;
#pragma omp parallel for schedule(static) if (rows * width > worth_threads)
    for (int64_t block = 0; block < blocks.count; block++) {
        float* own = of_bias ? sums.of_block(block) : nullptr;
        for (int64_t row = blocks.begin(block); row < blocks.end(block); row++) {
            const int64_t first = row * width;
            by_vectors(width, [=](int64_t at, int64_t count) {
                const Vector input = loaded(x + first + at, count);
                const Vector slope = Function::of(bias ? input + loaded(bias + at, count) : input).slope;
                const Vector back = loaded(gradient + first + at, count) * slope;
                stored(of_x + first + at, back, count);
                if (own)
                    store(own + at, load(own + at) + back);
            });
        }
    }
    if (of_bias)
        sums.add_up(of_bias);
    return 0;
}

template <typename Function, typename Element>
void gated(const Element* gate, const Element* wide, Element* out, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > worth_threads)
    for (int64_t row = 0; row < rows; row++)
        by_vectors(width, [=](int64_t at, int64_t count) {
            const int64_t place = row * width + at;
            stored(out + place, Function::of(loaded(gate + place, count)).value * loaded(wide + place, count), count);
        });
}

template <typename Function, typename Element>
void gated_backward(const Element* gradient, const Element* gate, const Element* wide, Element* of_gate,
                    Element* of_wide, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > worth_threads)
    for (int64_t row = 0; row < rows; row++)
        by_vectors(width, [=](int64_t at, int64_t count) {
            const int64_t place = row * width + at;
            const Activated activated = Function::of(loaded(gate + place, count));
            const Vector back = loaded(gradient + place, count);
            stored(of_gate + place, back * loaded(wide + place, count) * activated.slope, count);
            stored(of_wide + place, back * activated.value, count);
        });
}

// The activations' numbers, as trainer/kernels/cpp.py has them.
enum : int64_t { silu, gelu_tanh, gelu_erf, relu, none };

template <template <typename> class Call, typename... Arguments>
auto by_activation(int64_t activation, Arguments... arguments) {
    switch (activation) {
        case silu: return Call<Silu>::with(arguments...);
        case gelu_tanh: return Call<GeluTanh>::with(arguments...);
        case gelu_erf: return Call<GeluErf>::with(arguments...);
        case relu: return Call<Relu>::with(arguments...);
        default: return Call<Identity>::with(arguments...);
    }
}

template <typename Function>
struct Gated {
    template <typename... Arguments>
    static void with(Arguments... arguments) { gated<Function>(arguments...); }
};

template <typename Function>
struct GatedBackward {
    template <typename... Arguments>
    static void with(Arguments... arguments) { gated_backward<Function>(arguments...); }
};

template <typename Element>
void gelu(const Element* x, const Element* bias, Element* out, int64_t rows, int64_t width, int64_t tanh) {
    tanh ? bias_activation<GeluTanh>(x, bias, out, rows, width) : bias_activation<GeluErf>(x, bias, out, rows, width);
}

template <typename Element>
int gelu_backward(const Element* gradient, const Element* x, const Element* bias, Element* of_x, Element* of_bias,
                  int64_t rows, int64_t width, int64_t tanh) {
    return tanh ? bias_activation_backward<GeluTanh>(gradient, x, bias, of_x, of_bias, rows, width)
                : bias_activation_backward<GeluErf>(gradient, x, bias, of_x, of_bias, rows, width);
}

}  // namespace

// All tensors are contiguous [rows, width], bias [width]; a null bias is none. What returns a number returns 0, or 1
// where there is no memory for the sums.
#pragma GCC visibility push(default)
extern "C" {

void bias_gelu_f32(const float* x, const float* bias, float* out, int64_t rows, int64_t width, int64_t tanh) {
    gelu(x, bias, out, rows, width, tanh);
}

void bias_gelu_bf16(const BFloat16* x, const BFloat16* bias, BFloat16* out, int64_t rows, int64_t width,
                    int64_t tanh) {
    gelu(x, bias, out, rows, width, tanh);
}

int bias_gelu_backward_f32(const float* gradient, const float* x, const float* bias, float* of_x, float* of_bias,
                           int64_t rows, int64_t width, int64_t tanh) {
    return gelu_backward(gradient, x, bias, of_x, of_bias, rows, width, tanh);
}

int bias_gelu_backward_bf16(const BFloat16* gradient, const BFloat16* x, const BFloat16* bias, BFloat16* of_x,
                            BFloat16* of_bias, int64_t rows, int64_t width, int64_t tanh) {
    return gelu_backward(gradient, x, bias, of_x, of_bias, rows, width, tanh);
}

void gated_f32(const float* gate, const float* wide, float* out, int64_t rows, int64_t width, int64_t activation) {
    by_activation<Gated>(activation, gate, wide, out, rows, width);
}

void gated_bf16(const BFloat16* gate, const BFloat16* wide, BFloat16* out, int64_t rows, int64_t width,
                int64_t activation) {
    by_activation<Gated>(activation, gate, wide, out, rows, width);
}

void gated_backward_f32(const float* gradient, const float* gate, const float* wide, float* of_gate, float* of_wide,
                        int64_t rows, int64_t width, int64_t activation) {
    by_activation<GatedBackward>(activation, gradient, gate, wide, of_gate, of_wide, rows, width);
}

void gated_backward_bf16(const BFloat16* gradient, const BFloat16* gate, const BFloat16* wide, BFloat16* of_gate,
                         BFloat16* of_wide, int64_t rows, int64_t width, int64_t activation) {
    by_activation<GatedBackward>(activation, gradient, gate, wide, of_gate, of_wide, rows, width);
}
}
#pragma GCC visibility pop
