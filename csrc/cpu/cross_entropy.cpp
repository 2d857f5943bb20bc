// Cross entropy of rows of logits, which become their own gradient: what trainer/kernels/cross_entropy.py asks for.
//
// t tokens by v columns, fp32 or bfloat16; arithmetic is fp32. From `counted` on columns are padding: they have no part,
// and their gradient is 0. A label is a column, or negative where another rank has it.
//
// Bytes: the first pass reads the logits once, the second reads and writes them once, 3 e t v of e bytes an element, or
// 2 e t v where a row is whole here and stays in the last cache between both; torch's operations one by one take 8. A row is one thread's, block by block in one order, so the number of threads
// changes nothing. The floor is the memory's rate: an exp is some twenty instructions for each vector, twice.

#include <cmath>
#include <cstdint>
#include <limits>

#include "vectors.h"

using vectors::BFloat16;
using vectors::lanes;
using vectors::Vector;

namespace {

// Columns of which the greatest is found before the sum of exponents is: they stay in the first-level cache.
constexpr int64_t BLOCK = 2048;
constexpr float LOWEST = -std::numeric_limits<float>::infinity();

float number_of(float element) { return element; }

float number_of(BFloat16 element) { return vectors::load(&element, 1)[0]; }

// `count` elements, what is behind them as if it were padding.
template <typename Element>
Vector padded(const Element* from, int64_t count) {
    Vector some = vectors::load(from, count);
    for (int64_t lane = count; lane < lanes; ++lane) some[lane] = LOWEST;
    return some;
}

template <typename Element>
float greatest_of(const Element* logits, int64_t columns) {
    Vector greatest = vectors::broadcast(LOWEST);
    int64_t column = 0;
    for (; column + lanes <= columns; column += lanes)
        greatest = vectors::greater_of(vectors::load(logits + column), greatest);
    if (column < columns) greatest = vectors::greater_of(padded(logits + column, columns - column), greatest);
    return vectors::greatest(greatest);
}

// Sum of exp(logit - greatest). Where all are -inf it is 0, so that `greatest` may be that too.
template <typename Element>
double exponents_of(const Element* logits, int64_t columns, float greatest) {
    const float base = greatest == LOWEST ? 0.0f : greatest;
    Vector even = {}, odd = {};
    int64_t column = 0;
    for (; column + 2 * lanes <= columns; column += 2 * lanes) {
        even += vectors::exponential(vectors::load(logits + column) - base);
        odd += vectors::exponential(vectors::load(logits + column + lanes) - base);
    }
    for (; column < columns; column += lanes) {
        const int64_t left = columns - column;
        const Vector some = left < lanes ? padded(logits + column, left) : vectors::load(logits + column);
        even += vectors::exponential(some - base);
    }
    return vectors::sum(even + odd);
}

struct Row {
    float greatest, sum, label_logit;
};

template <typename Element>
Row statistics_of(const Element* row, int64_t label, int64_t counted) {
    float greatest = LOWEST;
    double sum = 0;
    for (int64_t first = 0; first < counted; first += BLOCK) {
        const int64_t width = counted - first < BLOCK ? counted - first : BLOCK;
        const float here = greatest_of(row + first, width);
        if (here > greatest) {
            sum *= vectors::exponential(vectors::broadcast(greatest - here))[0];
            greatest = here;
        }
        sum += exponents_of(row + first, width, greatest);
    }
    return {greatest, static_cast<float>(sum), label < 0 ? 0.0f : label < counted ? number_of(row[label]) : LOWEST};
}

// row <- factor * exp(row - base), less `share` at the label.
template <typename Element>
void to_gradient(Element* row, int64_t label, float base, float factor, float share, int64_t columns, int64_t counted) {
    const bool has_label = label >= 0 && label < counted;
    const Vector label_logit = vectors::broadcast(has_label ? number_of(row[label]) : LOWEST);
    int64_t column = 0;
    for (; column + lanes <= counted; column += lanes)
        vectors::store(row + column, vectors::exponential(vectors::load(row + column) - base) * factor);
    for (; column < columns; column += lanes) {  // the last that count, and the padding
        const int64_t left = columns - column < lanes ? columns - column : lanes;
        const int64_t counting = counted - column < left ? (counted > column ? counted - column : 0) : left;
        Vector some = vectors::exponential(vectors::load(row + column, counting) - base) * factor;
        for (int64_t lane = counting; lane < lanes; ++lane) some[lane] = 0;
        vectors::store(row + column, some, left);
    }
    if (has_label) vectors::store(row + label, vectors::exponential(label_logit - base) * factor - share, 1);
}

template <typename Element>
void statistics(const Element* logits, const int64_t* labels, int64_t tokens, int64_t columns, int64_t counted,
                float* greatest, float* sum, float* label_logit) {
#pragma omp parallel for schedule(static)
    for (int64_t token = 0; token < tokens; ++token) {
        const Row row = statistics_of(logits + token * columns, labels[token], counted);
        greatest[token] = row.greatest;
        sum[token] = row.sum;
        label_logit[token] = row.label_logit;
    }
}

template <typename Element>
void to_gradients(Element* logits, const int64_t* labels, const float* log_sum, const float* share, int64_t tokens,
                  int64_t columns, int64_t counted) {
#pragma omp parallel for schedule(static)
    for (int64_t token = 0; token < tokens; ++token)
        to_gradient(logits + token * columns, labels[token], log_sum[token], share[token], share[token], columns,
                    counted);
}

// Both passes over a row while it is in the last cache.
template <typename Element>
void whole(Element* logits, const int64_t* labels, const float* share, int64_t tokens, int64_t columns,
           int64_t counted, float* log_sum, float* label_logit) {
#pragma omp parallel for schedule(static)
    for (int64_t token = 0; token < tokens; ++token) {
        Element* elements = logits + token * columns;
        const Row row = statistics_of(elements, labels[token], counted);
        log_sum[token] = row.greatest + std::log(row.sum);
        label_logit[token] = row.label_logit;
        to_gradient(elements, labels[token], row.greatest, share[token] / row.sum, share[token], columns, counted);
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void cross_entropy_statistics_f32(const float* logits, const int64_t* labels, int64_t tokens, int64_t columns,
                                  int64_t counted, float* greatest, float* sum, float* label_logit) {
    statistics(logits, labels, tokens, columns, counted, greatest, sum, label_logit);
}

void cross_entropy_statistics_bf16(const BFloat16* logits, const int64_t* labels, int64_t tokens, int64_t columns,
                                   int64_t counted, float* greatest, float* sum, float* label_logit) {
    statistics(logits, labels, tokens, columns, counted, greatest, sum, label_logit);
}

void cross_entropy_gradient_f32(float* logits, const int64_t* labels, const float* log_sum, const float* share,
                                int64_t tokens, int64_t columns, int64_t counted) {
    to_gradients(logits, labels, log_sum, share, tokens, columns, counted);
}

void cross_entropy_gradient_bf16(BFloat16* logits, const int64_t* labels, const float* log_sum, const float* share,
                                 int64_t tokens, int64_t columns, int64_t counted) {
    to_gradients(logits, labels, log_sum, share, tokens, columns, counted);
}

void cross_entropy_whole_f32(float* logits, const int64_t* labels, const float* share, int64_t tokens, int64_t columns,
                             int64_t counted, float* log_sum, float* label_logit) {
    whole(logits, labels, share, tokens, columns, counted, log_sum, label_logit);
}

void cross_entropy_whole_bf16(BFloat16* logits, const int64_t* labels, const float* share, int64_t tokens,
                              int64_t columns, int64_t counted, float* log_sum, float* label_logit) {
    whole(logits, labels, share, tokens, columns, counted, log_sum, label_logit);
}
}
#pragma GCC visibility pop
