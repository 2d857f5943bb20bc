// LayerNorm and RMSNorm over rows, with or without the sum of two tensors before, and their gradients.
//
// y = (x - mean) / deviation * weight + bias; RMSNorm has no mean, and its deviation is the root mean square. Backward,
// with w = gradient * weight and n the normed x: (w - mean(w) - n mean(w n)) / deviation, plus what comes around the
// norm. Sums are in fp32: a row's over lanes in one order, those of weight and bias over fixed blocks of rows.
//
// Bytes: a row in and one out forward (two and two with the sum), two in and one out backward (three with what is
// added). Floor: memory; a row stays in the first- or second-level cache between its passes.
#include "row_blocks.h"
#include "vectors.h"

using namespace vectors;
using row_blocks::worth_threads;

namespace {

struct Options {
    int64_t rows, hidden, rms;
    float epsilon;
};

// A sum over a row in runs of 32 vectors, so that long rows lose no more than short ones.
class RowSum {
   public:
    void add_product(Vector a, Vector b) {
        run_ = multiply_add(a, b, run_);
        if (++terms_ % 32 == 0) {
            whole_ += run_;
            run_ = Vector{};
        }
    }
    void add(Vector value) { add_product(value, broadcast(1.0f)); }
    float mean(int64_t count) const { return sum(whole_ + run_) / (float)count; }

   private:
    Vector whole_{}, run_{};
    int64_t terms_ = 0;
};

// The first `count` lanes, zeros behind them.
inline Vector first_of(Vector value, int64_t count) {
    for (int64_t lane = count; lane < lanes; lane++)
        value[lane] = 0.0f;
    return value;
}

template <typename Element>
void normalize_row(const Element* x, const Element* weight, const Element* bias, Element* y, float* mean_to,
                   float* deviation_to, const Options& options) {
    const int64_t hidden = options.hidden;
    RowSum total, squares;
    float mean = 0.0f;
    if (!options.rms) {
        by_vectors(hidden, [&](int64_t at, int64_t count) { total.add(loaded(x + at, count)); });
        mean = *mean_to = total.mean(hidden);
    }
    by_vectors(hidden, [&](int64_t at, int64_t count) {
        Vector centred = loaded(x + at, count) - mean;
        if (count < lanes)
            centred = first_of(centred, count);
        squares.add_product(centred, centred);
    });
    const float factor = *deviation_to = 1.0f / __builtin_sqrtf(squares.mean(hidden) + options.epsilon);
    by_vectors(hidden, [&](int64_t at, int64_t count) {
        const Vector normed = (loaded(x + at, count) - mean) * factor;
        const Vector shift = bias ? loaded(bias + at, count) : Vector{};
        stored(y + at, multiply_add(normed, loaded(weight + at, count), shift), count);
    });
}

template <typename Element>
void forward(const Element* x, const Element* residual, const Element* weight, const Element* bias, Element* total,
             Element* y, float* mean, float* deviation, const Options& options) {
    const int64_t hidden = options.hidden;
#pragma omp parallel for schedule(static) if (options.rows * hidden > worth_threads)
    for (int64_t row = 0; row < options.rows; row++) {
        const int64_t first = row * hidden;
        if (residual)
            by_vectors(hidden, [=](int64_t at, int64_t count) {
                stored(total + first + at, loaded(x + first + at, count) + loaded(residual + first + at, count), count);
            });
        // What is normed is the sum as it is stored: the backward pass sees no other.
        normalize_row((residual ? total : x) + first, weight, bias, y + first, mean ? mean + row : nullptr,
                      deviation + row, options);
    }
}

template <typename Element>
void backward_of_row(const Element* gradient, const Element* x, const Element* weight, float mean, float factor,
                     const Element* added, Element* of_x, float* of_weight, float* of_bias, const Options& options) {
    const int64_t hidden = options.hidden;
    RowSum total, products;
    by_vectors(hidden, [&](int64_t at, int64_t count) {
        const Vector back = loaded(gradient + at, count);
        Vector normed = (loaded(x + at, count) - mean) * factor;
        const Vector weighed = back * loaded(weight + at, count);
        if (count < lanes)
            normed = first_of(normed, count);
        total.add(weighed);
        products.add_product(weighed, normed);
        store(of_weight + at, multiply_add(back, normed, load(of_weight + at)));
        if (of_bias)
            store(of_bias + at, load(of_bias + at) + back);
    });
    const float mean_total = options.rms ? 0.0f : total.mean(hidden);
    const float mean_product = products.mean(hidden);
    by_vectors(hidden, [=](int64_t at, int64_t count) {
        const Vector normed = (loaded(x + at, count) - mean) * factor;
        const Vector weighed = loaded(gradient + at, count) * loaded(weight + at, count);
        Vector back = (weighed - mean_total - normed * mean_product) * factor;
        if (added)
            back += loaded(added + at, count);
        stored(of_x + at, back, count);
    });
}

template <typename Element>
int backward(const Element* gradient, const Element* x, const Element* weight, const float* mean,
             const float* deviation, const Element* added, Element* of_x, Element* of_weight, Element* of_bias,
             const Options& options) {
    const int64_t hidden = options.hidden;
    const row_blocks::Blocks blocks(options.rows);
    const row_blocks::Sums weights(blocks, hidden), biases(blocks, of_bias ? hidden : 0);
    if (!weights.exist() || !biases.exist())
        return 1;
#pragma omp parallel for schedule(static) if (options.rows * hidden > worth_threads)
    for (int64_t block = 0; block < blocks.count; block++)
        for (int64_t row = blocks.begin(block); row < blocks.end(block); row++)
            backward_of_row(gradient + row * hidden, x + row * hidden, weight, mean ? mean[row] : 0.0f, deviation[row],
                            added ? added + row * hidden : nullptr, of_x + row * hidden, weights.of_block(block),
                            of_bias ? biases.of_block(block) : nullptr, options);
    weights.add_up(of_weight);
    if (of_bias)
        biases.add_up(of_bias);
    return 0;
}

}  // namespace

// Tensors are contiguous [rows, hidden], weight and bias [hidden], mean and deviation (its reciprocal) fp32 [rows].
// Null where there is none: bias and mean; residual, and total with it; added; of_bias. Backward returns 0, or 1 where
// there is no memory for the sums.
#pragma GCC visibility push(default)
extern "C" {

void norm_forward_f32(const float* x, const float* residual, const float* weight, const float* bias, float* total,
                      float* y, float* mean, float* deviation, int64_t rows, int64_t hidden, float epsilon) {
    forward(x, residual, weight, bias, total, y, mean, deviation, {rows, hidden, mean == nullptr, epsilon});
}

void norm_forward_bf16(const BFloat16* x, const BFloat16* residual, const BFloat16* weight, const BFloat16* bias,
                       BFloat16* total, BFloat16* y, float* mean, float* deviation, int64_t rows, int64_t hidden,
                       float epsilon) {
    forward(x, residual, weight, bias, total, y, mean, deviation, {rows, hidden, mean == nullptr, epsilon});
}

int norm_backward_f32(const float* gradient, const float* x, const float* weight, const float* mean,
                      const float* deviation, const float* added, float* of_x, float* of_weight, float* of_bias,
                      int64_t rows, int64_t hidden) {
    return backward(gradient, x, weight, mean, deviation, added, of_x, of_weight, of_bias,
                    {rows, hidden, mean == nullptr, 0.0f});
}

int norm_backward_bf16(const BFloat16* gradient, const BFloat16* x, const BFloat16* weight, const float* mean,
                       const float* deviation, const BFloat16* added, BFloat16* of_x, BFloat16* of_weight,
                       BFloat16* of_bias, int64_t rows, int64_t hidden) {
    return backward(gradient, x, weight, mean, deviation, added, of_x, of_weight, of_bias,
                    {rows, hidden, mean == nullptr, 0.0f});
}
}
#pragma GCC visibility pop
