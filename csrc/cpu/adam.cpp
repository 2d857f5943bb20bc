// AdamW over many flat pieces in one pass, and the sum of squares of many gradients.
//
// Update, per element: reads weight, two moments (12 bytes) and the gradient (4 or 2), writes weight and moments (12) and,
// where there is a half, the rounded weight (2): 28 to 30 bytes with an fp32 gradient. Floor: those bytes at the machine's
// copy rate. Squares: reads the gradient, nothing else.
//
// Source: Loshchilov and Hutter, arXiv 1711.05101, in the order of operations of torch.optim.AdamW's fused
// form, but that a division by sqrt(1 - beta2^step) is a product here: divisions and roots are half of the time.
//
// An element's update depends on nothing but its own numbers, and every element goes through the same loop (what is left
// of a piece is padded to a whole run), so bits depend neither on how a tensor is cut nor on the number of threads.
// Squares of fp32 numbers are exact in fp64; they are added per block of a fixed size, and blocks in their order.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bfloat16.h"


namespace {

constexpr int64_t run_elements = 64;  // the least that the loop takes: whole vectors, however wide
constexpr int64_t block_elements = 16384;  // of one thread's turn

struct Factors {
    float scale;       // of the gradient
    float kept;        // of the weight, after decay
    float beta2;
    float one_minus_beta1;
    float one_minus_beta2;
    float step_size;   // learning rate / (1 - beta1^step)
    float correction;  // 1 / sqrt(1 - beta2^step)
    float epsilon;
};

// `half` may be null without has_half. `elements` is a multiple of run_elements.
template <typename Gradient, bool has_half>
__attribute__((noinline)) void update_runs(
    float* __restrict weight,
    const Gradient* __restrict gradient,
    float* __restrict first,
    float* __restrict second,
    BFloat16* __restrict half,
    int64_t elements,
    const Factors& given
) {
    const Factors f = given;
    for (int64_t i = 0; i < elements / run_elements * run_elements; ++i) {
        const float scaled = as_float(gradient[i]) * f.scale;
        const float mean = first[i] + f.one_minus_beta1 * (scaled - first[i]);
        const float square = second[i] * f.beta2 + f.one_minus_beta2 * scaled * scaled;
        const float deviation = __builtin_sqrtf(square) * f.correction + f.epsilon;
        const float updated = weight[i] * f.kept - f.step_size * mean / deviation;
        first[i] = mean;
        second[i] = square;
        weight[i] = updated;
        if (has_half) {
            half[i] = rounded(updated);
        }
    }
}

template <typename Gradient, bool has_half>
void update(
    float* weight,
    const Gradient* gradient,
    float* first,
    float* second,
    BFloat16* half,
    int64_t elements,
    const Factors& factors
) {
    const int64_t whole = elements / run_elements * run_elements;
    update_runs<Gradient, has_half>(weight, gradient, first, second, half, whole, factors);
    const int64_t rest = elements - whole;
    if (rest == 0) {
        return;
    }
    float weights[run_elements] = {}, firsts[run_elements] = {}, seconds[run_elements] = {};
    Gradient gradients[run_elements] = {};
    BFloat16 halves[run_elements] = {};
    std::copy_n(weight + whole, rest, weights);
    std::copy_n(gradient + whole, rest, gradients);
    std::copy_n(first + whole, rest, firsts);
    std::copy_n(second + whole, rest, seconds);
    update_runs<Gradient, has_half>(weights, gradients, firsts, seconds, halves, run_elements, factors);
    std::copy_n(weights, rest, weight + whole);
    std::copy_n(firsts, rest, first + whole);
    std::copy_n(seconds, rest, second + whole);
    if (has_half) {
        std::copy_n(halves, rest, half + whole);
    }
}

// A block of a list of pieces: which piece it is in, and where it begins there.
struct Block {
    int64_t piece, start, elements;
};

std::vector<Block> blocks_of(const int64_t* sizes, int64_t pieces) {
    std::vector<Block> blocks;
    for (int64_t piece = 0; piece < pieces; ++piece) {
        for (int64_t start = 0; start < sizes[piece]; start += block_elements) {
            blocks.push_back({piece, start, std::min(block_elements, sizes[piece] - start)});
        }
    }
    return blocks;
}

template <typename Gradient>
double squares_of(const Gradient* gradient, int64_t elements) {
    constexpr int64_t lanes = 16;
    double sums[lanes] = {};
    const int64_t whole = elements / lanes * lanes;
    for (int64_t i = 0; i < whole; i += lanes) {
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const double number = as_float(gradient[i + lane]);
            sums[lane] += number * number;
        }
    }
    for (int64_t i = whole; i < elements; ++i) {
        const double number = as_float(gradient[i]);
        sums[i - whole] += number * number;
    }
    double total = 0;
    for (double sum : sums) {
        total += sum;
    }
    return total;
}

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

// One update of every piece. A piece is given by its addresses: weight, first and second moment in fp32, its gradient in
// fp32 or, with `bfloat16_gradient`, bf16, and its half in bf16 or null. The step's factors are worked out in fp64.
void adam_step(
    int64_t pieces,
    float* const* weight,
    const void* const* gradient,
    float* const* first,
    float* const* second,
    BFloat16* const* half,
    const int64_t* sizes,
    int64_t bfloat16_gradient,
    double scale,
    double learning_rate,
    double beta1,
    double beta2,
    double epsilon,
    double weight_decay,
    int64_t step
) {
    const double count = static_cast<double>(step);
    const Factors factors{
        static_cast<float>(scale),
        static_cast<float>(1 - learning_rate * weight_decay),
        static_cast<float>(beta2),
        static_cast<float>(1 - beta1),
        static_cast<float>(1 - beta2),
        static_cast<float>(learning_rate / (1 - std::pow(beta1, count))),
        static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, count))),
        static_cast<float>(epsilon),
    };
    const std::vector<Block> blocks = blocks_of(sizes, pieces);
    const int64_t many = static_cast<int64_t>(blocks.size());
#pragma omp parallel for schedule(static)
    for (int64_t number = 0; number < many; ++number) {
        const auto [piece, start, elements] = blocks[number];
        float* const weights = weight[piece] + start;
        float* const firsts = first[piece] + start;
        float* const seconds = second[piece] + start;
        BFloat16* const halves = half[piece] ? half[piece] + start : nullptr;
        if (bfloat16_gradient) {
            const auto* given = static_cast<const BFloat16*>(gradient[piece]) + start;
            halves ? update<BFloat16, true>(weights, given, firsts, seconds, halves, elements, factors)
                   : update<BFloat16, false>(weights, given, firsts, seconds, halves, elements, factors);
        } else {
            const auto* given = static_cast<const float*>(gradient[piece]) + start;
            halves ? update<float, true>(weights, given, firsts, seconds, halves, elements, factors)
                   : update<float, false>(weights, given, firsts, seconds, halves, elements, factors);
        }
    }
}

// The sum of all squares; bfloat16[piece] says which gradients are bf16, the others are fp32.
double sum_of_squares(int64_t pieces, const void* const* gradient, const int64_t* sizes, const uint8_t* bfloat16) {
    const std::vector<Block> blocks = blocks_of(sizes, pieces);
    const int64_t many = static_cast<int64_t>(blocks.size());
    std::vector<double> sums(blocks.size());
#pragma omp parallel for schedule(static)
    for (int64_t number = 0; number < many; ++number) {
        const auto [piece, start, elements] = blocks[number];
        sums[number] = bfloat16[piece] ? squares_of(static_cast<const BFloat16*>(gradient[piece]) + start, elements)
                                       : squares_of(static_cast<const float*>(gradient[piece]) + start, elements);
    }
    double total = 0;
    for (double sum : sums) {
        total += sum;
    }
    return total;
}

}

#pragma GCC visibility pop
